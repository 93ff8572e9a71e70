"""``make run`` and ``make demo``: a whole run on this machine, then the proof of its journal.

Starts a server on ``demo.yaml``, lets the agent ``survey`` read a directory while its stream is
shown, replays the journal, and says what to try next. Needs no key and no network.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import os
import shlex
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

import httpx

from loomcycle.cli.client import start_request
from loomcycle.cli.errors import CommandFailed
from loomcycle.cli.run import perform
from loomcycle.cli.transcript import Transcript, view_for
from loomcycle.own_process import own_command, own_environ

HERE = Path(__file__).resolve().parent
CONFIG = HERE / "demo.yaml"
HOST = "127.0.0.1"
PREFERRED_PORT = 8787
BOOT_LIMIT_S = 30.0
USER = "demo"

GUIDES = {"ANTHROPIC_API_KEY": "guide-anthropic", "OPENAI_API_KEY": "guide-openai"}
NO_WORDS = " "
"""The survey lists the lines with the words of its prompt; a prompt must not be empty."""

QUESTION = "What is this project, and which three files should I read first?"


class Demo(NamedTuple):
    """A running server. ``environ`` is what its commands need to find its log."""

    url: str
    server: subprocess.Popen[bytes]
    environ: Mapping[str, str]


def main() -> int:
    """Returns the exit code: 0 when the run completed and its journal was proven."""
    parser = argparse.ArgumentParser(prog="python -m loomcycle.demo.run", description=__doc__)
    parser.add_argument("--dir", type=Path, default=Path(), help="directory to look at")
    parser.add_argument("--data", type=Path, default=None, help="data directory")
    parser.add_argument("--keep-serving", action="store_true", help="until Ctrl-C, in ./data")
    given = parser.parse_args()
    directory = given.dir.resolve()
    if not directory.is_dir():
        print(f"{given.dir} is not a directory", file=sys.stderr)
        return 2
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        with _data_dir(given.data, given.keep_serving) as data, _server(directory, data) as demo:
            proven, run_id = _show(demo, directory)
            if given.keep_serving:
                _say("What to try next, in another terminal:")
                print(_next_steps(demo, run_id))
                _say(f"Serving on {demo.url}; Ctrl-C stops.")
                return demo.server.wait()
            _say("`make run` does the same, keeps serving, and says what to try next.")
            return 0 if proven else 1
    except CommandFailed as failure:
        print(f"demo: {failure}", file=sys.stderr)
        return failure.exit_code
    except KeyboardInterrupt:
        return 0 if given.keep_serving else 1


def _show(demo: Demo, directory: Path) -> tuple[bool, str]:
    """Whether the run completed and was proven, and its id."""
    _say(f"The agent `survey` looks at {directory}: a run, shown as it happens.")
    survey = _run_agent(demo, "survey", NO_WORDS)
    _say("The same run again, from its journal alone: nothing is called, everything is compared.")
    proven = _loomcycle(demo, "replay", "verify", survey.run_id)
    for key, agent in GUIDES.items():
        if os.environ.get(key):
            _say(f"{key} is set: the agent `{agent}` answers a question about {directory}.")
            _run_agent(demo, agent, QUESTION)
            break
    return survey.completed and proven, survey.run_id


def _run_agent(demo: Demo, agent: str, prompt: str) -> Transcript:
    request = start_request(agent, prompt, user_id=USER)
    token = demo.environ.get("LOOMCYCLE_AUTH_TOKEN", "")
    return asyncio.run(perform(demo.url, token, request, view=view_for(sys.stdout, sys.stdout)))


def _loomcycle(demo: Demo, *arguments: str) -> bool:
    """Run one command of the CLI against the demo's data; False when it failed."""
    sys.stdout.flush()
    return subprocess.run(own_command(*arguments), env=demo.environ, check=False).returncode == 0


def _next_steps(demo: Demo, run_id: str) -> str:
    """Three commands for another terminal: curl, a real model, the command line."""
    loomcycle = Path(sys.executable).with_name("loomcycle")
    if loomcycle.is_relative_to(Path.cwd()):
        loomcycle = loomcycle.relative_to(Path.cwd())
    data = shlex.quote(demo.environ["LOOMCYCLE_DATA_DIR"])
    body = f'{{"agent":"survey","prompt":"nats","user_id":"{USER}"}}'
    return (
        f"  curl -N {demo.url}/v1/runs -H 'Content-Type: application/json' -d '{body}'\n"
        "  ANTHROPIC_API_KEY=... make run        # or OPENAI_API_KEY: a model looks around too\n"
        f"  LOOMCYCLE_DATA_DIR={data} {loomcycle} log run {run_id}"
    )


# --- the server ---------------------------------------------------------------------------


@contextlib.contextmanager
def _data_dir(given: Path | None, keep: bool) -> Iterator[Path]:
    if given is not None or keep:
        yield (given or Path("data")).resolve()
        return
    with tempfile.TemporaryDirectory(prefix="loomcycle-demo-") as directory:
        yield Path(directory)


@contextlib.contextmanager
def _server(directory: Path, data: Path) -> Iterator[Demo]:
    """A server on the demo's configuration, stopped at the end. Raises CommandFailed."""
    data.mkdir(parents=True, exist_ok=True)
    address = f"{HOST}:{_port()}"
    environ = own_environ(
        LOOMCYCLE_DATA_DIR=str(data),
        LOOMCYCLE_DEMO_DIR=str(directory),
        LOOMCYCLE_CODE_AGENTS_ENABLED="1",
        LOOMCYCLE_CODE_AGENTS_ROOT=str(HERE),
        LOOMCYCLE_CONFIG_FILES=str(CONFIG),
    )
    log = data / "server.log"
    _say(f"A server starts on {address}: log and views in {data}, its messages in {log}.")
    began = time.monotonic()
    with log.open("ab") as messages:
        server = subprocess.Popen(
            own_command("serve", "--listen", address),
            env=environ,
            stdin=subprocess.DEVNULL,
            stdout=messages,
            stderr=messages,
            process_group=0,
        )
    try:
        _wait_until_it_answers(f"http://{address}", server, log)
        print(f"Ready after {time.monotonic() - began:.1f} s.")
        yield Demo(f"http://{address}", server, environ)
    finally:
        server.terminate()
        with contextlib.suppress(KeyboardInterrupt):
            server.wait()


def _wait_until_it_answers(url: str, server: subprocess.Popen[bytes], log: Path) -> None:
    deadline = time.monotonic() + BOOT_LIMIT_S
    while time.monotonic() < deadline:
        if server.poll() is not None:
            last = "".join(log.read_text(errors="replace").splitlines(keepends=True)[-10:])
            raise CommandFailed(f"the server ended with status {server.returncode}:\n{last}")
        with contextlib.suppress(httpx.HTTPError):
            if httpx.get(f"{url}/healthz", timeout=1.0, trust_env=False).status_code == 200:
                return
        time.sleep(0.02)
    raise CommandFailed(f"the server did not answer within {BOOT_LIMIT_S:g} s: see {log}")


def _port() -> int:
    """The usual port, or any free one when it is taken."""
    for port in (PREFERRED_PORT, 0):
        with contextlib.suppress(OSError), socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind((HOST, port))
            return int(probe.getsockname()[1])
    raise CommandFailed(f"no free port on {HOST}")


def _say(text: str) -> None:
    print(f"\n\033[1m{text}\033[0m" if sys.stdout.isatty() else f"\n{text}", flush=True)


if __name__ == "__main__":
    sys.exit(main())
