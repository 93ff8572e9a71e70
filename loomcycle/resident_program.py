"""Child processes that hold long code-js runs at their frontier: a cache, never a need.

A child executes the program once and waits inside each call for its result, so a call costs the
same however many went before. It may be killed at any moment and holds nothing that matters:
whoever is answered None runs the program again from its journal, with the same outcome.
"""

from __future__ import annotations

import asyncio
import logging
import marshal
import math
import os
import socket
import subprocess
import sys
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from importlib.util import find_spec
from pathlib import Path
from typing import cast

from replay.codejs import Call, Interpreter, Outcome, ToolCall, timed_out
from replay.codejs.interpreter import well_formed
from replay.codejs.resident import believed

log = logging.getLogger(__name__)

MOST = 4
"""Children of one process; each takes about 12 MB and what its program needs."""
IDLE_S = 1.0
"""A program whose call takes longer than this makes room for another one."""

_HEAD = 4
_LONGEST_ANSWER = 128 << 20
_LONGEST_S = 1e6
_MARGIN_S = 5
_LOST = (OSError, EOFError, NotImplementedError)
"""No child, no answer, or an event loop that has no sockets."""
_LOADER = ("LD_LIBRARY_PATH",)
_REAPER = ThreadPoolExecutor(max_workers=1, thread_name_prefix="reaper")


class Residents:
    """The children of this process, at most ``most`` at once. None at all outside Linux, whose
    ``/proc`` and death signal they rely on."""

    def __init__(self, most: int = MOST) -> None:
        self._most = most if sys.platform == "linux" else 0
        self._places: set[Resident] = set()

    def place(self, interpreter: Interpreter) -> Resident | None:
        """A place for the program of ``interpreter``, with no child yet; None: all are taken."""
        if len(self._places) >= self._most > 0:
            longest = min(self._places, key=lambda resident: resident.idle_since)
            if longest.idle_since < asyncio.get_running_loop().time() - IDLE_S:
                longest.close()
        if len(self._places) >= self._most:
            return None
        resident = Resident(interpreter, self._places)
        self._places.add(resident)
        return resident


class Resident:
    """One run's program in a child process, from its first :meth:`advance` to :meth:`close`."""

    def __init__(self, interpreter: Interpreter, places: set[Resident]) -> None:
        self._interpreter = interpreter
        self._tools = frozenset(interpreter.program.tools)
        self._places = places
        self._process: subprocess.Popen[bytes] | None = None
        self._line: Line | None = None
        self._asked: ToolCall | None = None
        self.idle_since = math.inf
        """When the program began to wait for a result, by the loop's clock; else infinite."""

    @property
    def pid(self) -> int:
        """The child's process id; 0 while there is none."""
        return self._process.pid if self._process is not None else 0

    async def advance(self, recorded: Sequence[Call], *, time_limit_s: float) -> Outcome | None:
        """What the program does next, given one more call than last time; None: nobody knows,
        and this place is given up.

        ``time_limit_s`` is what is left of the run's budget, in seconds of wall clock.
        """
        budget_s = self._interpreter.program.budget_s
        if time_limit_s <= 0:
            self.close()
            return timed_out(budget_s)
        outcome: Outcome | None = None
        try:
            async with asyncio.timeout(min(time_limit_s, _LONGEST_S)):
                outcome = await self._advance(recorded, time_limit_s)
        except TimeoutError:
            return timed_out(budget_s)
        except _LOST as cause:
            log.debug("a resident program is run again: %r", cause)
        finally:
            if not isinstance(outcome, ToolCall):
                self.close()
        return outcome

    def close(self) -> None:
        """End the child and free the place; harmless at any time."""
        self._places.discard(self)
        self.idle_since = math.inf
        if self._line is not None:
            self._line.close()
            self._line = None
        if self._process is not None:
            self._process.kill()
            _REAPER.submit(self._process.wait)
            self._process = None

    async def _advance(self, recorded: Sequence[Call], time_limit_s: float) -> Outcome | None:
        if self not in self._places:
            return None
        if self._line is None:
            message = self._opening(recorded, time_limit_s)
            line = await self._start()
        elif self._continues(recorded):
            line = self._line
            call = recorded[-1]
            message = (b"1" if call.is_error else b"0") + well_formed(call.result_text).encode()
        else:
            return None
        self._asked = None
        self.idle_since = math.inf
        outcome = believed(await line.exchange(message), self._tools, len(recorded))
        if isinstance(outcome, ToolCall):
            self._asked = outcome
            self.idle_since = asyncio.get_running_loop().time()
        return outcome

    def _continues(self, recorded: Sequence[Call]) -> bool:
        """Whether exactly the call that the program asked for was recorded: if it was masked,
        say, a new execution notices."""
        asked = self._asked
        if asked is None or len(recorded) != asked.index + 1:
            return False
        return (recorded[-1].name, bytes(recorded[-1].input)) == (asked.name, asked.input_json)

    def _opening(self, recorded: Sequence[Call], time_limit_s: float) -> bytes:
        opening = self._interpreter.opening(recorded)._asdict()
        time_s = math.ceil(min(time_limit_s, _LONGEST_S)) + _MARGIN_S
        return marshal.dumps((time_s, opening))

    async def _start(self) -> Line:
        ours, theirs = socket.socketpair()
        with theirs:
            try:
                connect = asyncio.get_running_loop().create_unix_connection
                _, self._line = await connect(Line, sock=ours)
            except BaseException:
                ours.close()
                raise
            self._process = _child(theirs)
        return self._line


class Line(asyncio.Protocol):
    """Our end of the line to a child: a message, its answer, a message. Each is four bytes of
    length, then so many bytes. It closes on anything else."""

    def __init__(self) -> None:
        self._received = bytearray()
        self._answer: asyncio.Future[bytes] | None = None
        self._transport: asyncio.Transport | None = None

    async def exchange(self, message: bytes) -> bytes:
        """The answer to ``message``. Raises EOFError when none will come."""
        if self._transport is None:
            raise EOFError("the child is gone")
        self._answer = asyncio.get_running_loop().create_future()
        self._transport.write(len(message).to_bytes(_HEAD, "big") + message)
        return await self._answer

    def close(self) -> None:
        if self._transport is not None:
            self._transport.abort()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        received = self._received
        received += data
        if len(received) < _HEAD:
            return
        size = int.from_bytes(received[:_HEAD], "big")
        missing = _HEAD + size - len(received)
        if size > _LONGEST_ANSWER or missing < 0 or self._answer is None:
            self.close()
        elif missing == 0:
            answer = bytes(received[_HEAD:])
            received.clear()
            self._resolve(answer)

    def connection_lost(self, exc: Exception | None) -> None:
        self._transport = None
        self._resolve(exc or EOFError("the child is gone"))

    def _resolve(self, answer: bytes | Exception) -> None:
        asked, self._answer = self._answer, None
        if asked is None or asked.done():
            return
        if isinstance(answer, bytes):
            asked.set_result(answer)
        else:
            asked.set_exception(answer)


def _child(line: socket.socket) -> subprocess.Popen[bytes]:
    """It inherits its end of the line and nothing else: no other file, no variable of ours."""
    host = Path(__file__).with_name("resident_host.py")
    engine = find_spec("_quickjs")
    library = os.path.dirname(engine.origin) if engine is not None and engine.origin else ""
    return subprocess.Popen(
        [sys.executable, "-I", "-S", str(host), str(os.getpid()), library],
        stdin=line.fileno(),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        env={name: os.environ[name] for name in _LOADER if name in os.environ},
        cwd="/",
        start_new_session=True,
    )
