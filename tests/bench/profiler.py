"""Starts the server under a sampling profiler: ``python -m tests.bench.profiler OUT serve …``.

SIGUSR1 begins, SIGUSR2 ends and writes OUT. A sample is weighed with the processor time that the
main thread spent since the sample before, so waiting and other threads cost nothing. Time in C
belongs to the Python function that called it.
"""

from __future__ import annotations

import signal
import sys
import time
from collections import defaultdict
from pathlib import Path
from types import FrameType

import msgspec
from msgspec import Struct

INTERVAL_S = 0.001
_ROOT = str(Path(__file__).resolve().parents[2])


class Profile(Struct, kw_only=True):
    """Seconds of the main thread: ``own`` by function, ``total`` with what it called."""

    main_s: float
    process_s: float
    samples: int
    own: dict[str, float]
    total: dict[str, float]


class _Sampler:
    def __init__(self, out: Path) -> None:
        self._out = out
        self._own: dict[str, float] = defaultdict(float)
        self._total: dict[str, float] = defaultdict(float)
        self._samples = 0
        self._last = self._began = self._process = 0.0

    def begin(self, *_: object) -> None:
        self._last = self._began = time.thread_time()
        self._process = time.process_time()
        signal.signal(signal.SIGPROF, self._sample)
        signal.setitimer(signal.ITIMER_PROF, INTERVAL_S, INTERVAL_S)

    def end(self, *_: object) -> None:
        signal.setitimer(signal.ITIMER_PROF, 0)
        profile = Profile(
            main_s=time.thread_time() - self._began,
            process_s=time.process_time() - self._process,
            samples=self._samples,
            own=dict(self._own),
            total=dict(self._total),
        )
        draft = self._out.with_suffix(".draft")
        draft.write_bytes(msgspec.json.encode(profile))
        draft.replace(self._out)

    def _sample(self, _: int, frame: FrameType | None) -> None:
        now = time.thread_time()
        weight, self._last = now - self._last, now
        self._samples += 1
        seen: set[str] = set()
        while frame is not None:
            name = _name_of(frame)
            if not seen:
                self._own[name] += weight
            if name not in seen:
                seen.add(name)
                self._total[name] += weight
            frame = frame.f_back


def _name_of(frame: FrameType) -> str:
    code = frame.f_code
    path = code.co_filename
    for marker in ("site-packages/", _ROOT + "/", "/python3.11/"):
        path = path.rpartition(marker)[2]
    return f"{path.removesuffix('.py').replace('/', '.')}:{code.co_qualname}"


def main() -> int:
    from loomcycle.cli import main as serve

    sampler = _Sampler(Path(sys.argv[1]))
    signal.signal(signal.SIGUSR1, sampler.begin)
    signal.signal(signal.SIGUSR2, sampler.end)
    return serve(sys.argv[2:])


if __name__ == "__main__":
    sys.exit(main())
