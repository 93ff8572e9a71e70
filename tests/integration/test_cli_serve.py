"""The command line as processes: servers that start, serve, die and stop; the log beside them."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import httpx
import pytest

from events.embedded import EmbeddedServer
from events.nats_store import connect
from events.seals import load_master_key
from tests.e2e.proofs import open_log
from tests.wire.journals import proofs

ROOT = Path(__file__).parents[2]
LIMIT_S = 20.0
STOP_S = 10.0

CONFIG = """
defaults: {provider: mock, model: mock-generic}
agents:
  hello: {system_prompt: Be brief.}
  counter:
    provider: code-js
    code: |
      function run(input) { return "counted " + input.prompt.length; }
"""


def until(condition: Callable[[], object], limit_s: float = LIMIT_S) -> None:
    deadline = time.monotonic() + limit_s
    while not condition():
        assert time.monotonic() < deadline, "waited in vain"
        time.sleep(0.01)


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def alive(pid: int) -> bool:
    """Whether the process runs; a zombie that its parent has not fetched yet does not."""
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False
    return state != "Z"


def children_of(pid: int) -> list[int]:
    found: list[int] = []
    for task in Path(f"/proc/{pid}/task").glob("*/children"):
        with contextlib.suppress(OSError):
            found += map(int, task.read_text().split())
    return found


class Place:
    """A directory with a configuration, data, and the processes started in it.

    Its journals must be ``proven`` in the end.
    """

    def __init__(self, directory: Path) -> None:
        self.proven = True
        self.directory = directory
        self.data = directory / "data"
        (directory / "loomcycle.yaml").write_text(CONFIG)
        self.port = free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        self.environ = {
            **{k: v for k, v in os.environ.items() if not k.startswith("LOOMCYCLE_")},
            "PYTHONPATH": str(ROOT),
            "HOME": str(directory),
            "LOOMCYCLE_MOCK_ENABLED": "1",
            "LOOMCYCLE_MOCK_LATENCY_MS": "1",
            "LOOMCYCLE_MOCK_LATENCY_JITTER_MS": "0",
            "LOOMCYCLE_CODE_AGENTS_ENABLED": "1",
            "LOOMCYCLE_BASE_URL": self.url,
        }
        self._started: list[subprocess.Popen[str]] = []
        self._logs = 0

    def start(self, *arguments: str, **environ: str) -> Running:
        """Start a command; its stderr goes to a file."""
        self._logs += 1
        log = self.directory / f"stderr-{self._logs}"
        with log.open("w") as messages:
            process = subprocess.Popen(
                [sys.executable, "-m", "loomcycle.cli", *arguments],
                cwd=self.directory,
                env={**self.environ, **environ},
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=messages,
                text=True,
            )
        self._started.append(process)
        return Running(process, log)

    def serve(self, *arguments: str, **environ: str) -> Running:
        """A server that answers."""
        server = self.start("serve", "--listen", f"127.0.0.1:{self.port}", *arguments, **environ)
        until(lambda: "loomcycle listening on" in server.messages or server.ended)
        assert not server.ended, server.messages
        return server

    def call(self, *arguments: str, stdin: str = "") -> subprocess.CompletedProcess[str]:
        """Run a command to its end."""
        return subprocess.run(
            [sys.executable, "-m", "loomcycle.cli", *arguments],
            cwd=self.directory,
            env=self.environ,
            input=stdin,
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )

    def run_agent(self, agent: str = "hello", prompt: str = "hi") -> str:
        """One completed run; its id."""
        done = self.call("run", agent, "--prompt", prompt)
        assert done.returncode == 0, done.stderr
        return str(re.search(r"run (r_\w+)", done.stderr)[1])  # type: ignore[index]

    def end(self) -> None:
        for process in self._started:
            process.kill()
            process.wait()


class Running:
    def __init__(self, process: subprocess.Popen[str], log: Path) -> None:
        self.process = process
        self.pid = process.pid
        self._log = log

    @property
    def messages(self) -> str:
        return self._log.read_text()

    @property
    def ended(self) -> bool:
        return self.process.poll() is not None

    def stop(self, number: int = signal.SIGTERM) -> int:
        """Signal it and wait, at most as long as stopping may take; its exit code."""
        self.process.send_signal(number)
        return self.process.wait(STOP_S)


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Place]:
    place = Place(tmp_path)
    yield place
    place.end()
    if place.proven and (place.data / "nats").exists():
        asyncio.run(all_proven(place.data))


async def all_proven(data: Path) -> None:
    """Every journal of a data directory is proven, as far as it goes."""
    async with open_log(data) as store:
        assert [report for report in await proofs(store) if not report.ok] == []


# --- one process --------------------------------------------------------------------------


def test_an_audit_file_is_made_at_boot_for_its_owner_alone(place: Place) -> None:
    audit = place.directory / "audit.jsonl"
    server = place.serve(LOOMCYCLE_AUDIT_LOG_PATH="audit.jsonl")
    assert audit.stat().st_mode & 0o777 == 0o600
    assert "audit: nothing is written to LOOMCYCLE_AUDIT_LOG_PATH" in server.messages


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_server_starts_answers_and_stops(place: Place, number: int) -> None:
    server = place.serve()
    assert httpx.get(f"{place.url}/healthz", trust_env=False).json()["ok"] is True
    health = place.call("health")
    assert health.returncode == 0
    assert health.stdout.startswith(f"GET {place.url}/healthz -> 200\n{{")
    nats = [pid for pid in children_of(server.pid) if alive(pid)]
    assert nats
    assert server.stop(number) == 0
    until(lambda: not any(map(alive, nats)))
    lines = server.messages.splitlines()
    stamp = r"\d{4}/\d\d/\d\d \d\d:\d\d:\d\d "
    assert all(re.match(stamp, line) for line in lines)
    assert re.fullmatch(stamp + r"loomcycle build: version=\S+ commit=\S+ time=\S+", lines[0])
    listening = next(i for i, line in enumerate(lines) if "listening" in line)
    assert lines[listening].endswith(f" loomcycle listening on 127.0.0.1:{place.port}")
    assert lines[listening + 1].endswith(" shutting down…")
    assert place.call("health").returncode == 1


def test_the_default_command_is_serve(place: Place) -> None:
    server = place.start("--config", "loomcycle.yaml", LOOMCYCLE_LISTEN_ADDR="127.0.0.1:0")
    until(lambda: "listening on" in server.messages or server.ended)
    assert server.stop() == 0


@pytest.mark.parametrize("workers", ["1", "2"])
@pytest.mark.parametrize("moment", ["loomcycle build", "config: 2 agent(s)", "nats-server"])
def test_told_to_stop_while_it_starts_a_server_stops(
    place: Place, moment: str, workers: str
) -> None:
    server = place.start("serve", "--listen", "127.0.0.1:0", "--workers", workers)
    if moment == "nats-server":
        until(lambda: (place.data / "nats" / "server.conf").exists())
    else:
        until(lambda: moment in server.messages)
    descendants = [pid for child in children_of(server.pid) for pid in (child, *children_of(child))]
    assert server.stop() == 0
    until(lambda: not any(map(alive, descendants)))
    assert "Traceback" not in server.messages


def test_a_taken_port_is_told(place: Place) -> None:
    with socket.socket() as other:
        other.bind(("127.0.0.1", place.port))
        other.listen()
        for workers in ("1", "2"):
            server = place.start(
                "serve", "--listen", f"127.0.0.1:{place.port}", "--workers", workers
            )
            assert server.process.wait(LIMIT_S) == 1
            taken = f"cannot listen on 127.0.0.1:{place.port}: Address already in use"
            assert taken in server.messages


def test_a_run_goes_on_when_its_server_is_replaced(place: Place) -> None:
    slow = {"LOOMCYCLE_MOCK_LATENCY_MS": "1500"}
    server = place.serve(**slow)
    client = place.start("run", "hello", "--prompt", "hi", "--json")
    assert client.process.stdout is not None
    lines = [json.loads(client.process.stdout.readline()) for _ in range(3)]
    assert [line["event"] for line in lines] == ["session", "agent", "started"]
    run_id = lines[1]["data"]["run_id"]
    follower = place.start("log", "run", run_id, "--follow", "--json")
    server.stop()
    assert not client.ended
    server = place.serve(**slow)
    output, _ = client.process.communicate(timeout=LIMIT_S)
    assert client.process.returncode == 0, client.messages
    events = [json.loads(line)["event"] for line in output.splitlines()]
    assert events[-1] == "done"
    assert events.count("started") == 0
    audit, _ = follower.process.communicate(timeout=LIMIT_S)
    assert json.loads(audit.splitlines()[-1])["type"] == "run.finished"
    assert server.stop() == 0


def test_a_refused_run_is_an_invocation_error(place: Place) -> None:
    place.serve()
    refused = place.call("run", "nobody", "--prompt", "hi")
    assert refused.returncode == 2
    assert f'{place.url}/v1/runs: unknown agent "nobody"' in refused.stderr


def test_with_a_configuration_a_run_knows_address_and_token(place: Place) -> None:
    auth = f"LOOMCYCLE_AUTH_TOKEN=tok-123456\nLOOMCYCLE_LISTEN_ADDR=127.0.0.1:{place.port}\n"
    (place.directory / "auth.env").write_text(auth)
    place.environ["LOOMCYCLE_BASE_URL"] = "http://127.0.0.1:1"
    server = place.start("serve")
    until(lambda: "loomcycle listening on" in server.messages or server.ended)
    asked = ("run", "hello", "--prompt", "hi")
    known = place.call(*asked, "--config", "loomcycle.yaml")
    assert known.returncode == 0, known.stderr
    refused = place.call(*asked, "--target", place.url)
    assert refused.returncode == 2
    told = place.call(*asked, "--target", place.url, "--token", "tok-123456")
    assert told.returncode == 0, told.stderr
    assert "tok-123456" not in server.messages + known.stderr + refused.stderr


def test_a_prompt_comes_from_stdin_and_only_the_answer_goes_to_stdout(place: Place) -> None:
    place.serve()
    done = place.call("run", "counter", stdin="12345")
    assert done.returncode == 0, done.stderr
    assert done.stdout == "counted 5\n"
    assert "end_turn" in done.stderr
    empty = place.call("run", "counter")
    assert empty.returncode == 2


def test_a_session_is_continued(place: Place) -> None:
    place.serve()
    first = place.call("run", "hello", "--prompt", "one")
    session = re.search(r"in session (s_\w+)", first.stderr)
    assert session is not None
    again = place.call("run", "--session", session[1], "--prompt", "two")
    assert again.returncode == 0, again.stderr
    log = place.call("log", "session", session[1], "--json")
    events = [json.loads(line) for line in log.stdout.splitlines()]
    assert [e["type"] for e in events].count("run.started") == 2
    assert len({e["run"] for e in events}) == 2


# --- the log, beside a server and without one ---------------------------------------------


@pytest.mark.parametrize("beside", [True, False])
def test_the_log_is_read_proven_and_folded(place: Place, beside: bool) -> None:
    server = place.serve()
    run_id = place.run_agent()
    place.run_agent("counter", "four")
    if not beside:
        assert server.stop() == 0

    log = place.call("log", "run", run_id)
    assert log.returncode == 0, log.stderr
    lines = log.stdout.splitlines()
    assert re.fullmatch(r"\d{4}-\S+ \S+Z +1  run.started +agent=hello .*", lines[0])
    assert lines[-1].split()[3:] == ["run.finished", "status=completed", "stop_reason=end_turn"]
    assert [int(line.split()[2]) for line in lines] == list(range(1, len(lines) + 1))

    tenant = place.call("log", "tenant", "default", "--json")
    assert tenant.stderr == ""
    assert place.call("log", "tenant", "", "--json").stdout == tenant.stdout
    named = place.call("log", "run", run_id, "--tenant", "default")
    assert named.stdout == log.stdout
    nobody = place.call("log", "tenant", "acme")
    assert (nobody.returncode, nobody.stdout) == (0, "")
    assert nobody.stderr == 'loomcycle: the log holds no run of tenant "acme", but of ""\n'
    events = [json.loads(line) for line in tenant.stdout.splitlines()]
    assert len({e["run"] for e in events}) == 2
    assert [e["time"] for e in events] == sorted(e["time"] for e in events)
    assert {e["body"]["type"] for e in events if e["n"] == 1} == {"run.started"}

    one = place.call("replay", "verify", run_id, "--tenant", "default")
    assert one.returncode == 0, one.stderr
    assert re.fullmatch(rf"{run_id}: proven: \d+ commits, .* equal\n", one.stdout)
    everything = place.call("replay", "verify", "--all")
    assert everything.returncode == 0
    assert everything.stdout.startswith("2 of 2 runs proven (0 of them not ended yet): ")

    status = place.call("projections", "status")
    assert status.returncode == 0, status.stderr
    assert f"writer    {'a running server' if beside else 'this command'}\n" in status.stdout
    assert re.search(r"RUNS-\d +position \d+, 0 behind\n", status.stdout)
    rebuilt = place.call("projections", "rebuild")
    assert rebuilt.returncode == 0, rebuilt.stderr
    verified = place.call("projections", "verify")
    assert verified.returncode == 0, verified.stderr
    assert verified.stdout.endswith("equal\n")
    assert "runs         2 rows\n" in verified.stdout


@pytest.mark.parametrize(
    "arguments",
    [
        ("log", "run", "r_0000000000000000"),
        ("log", "run", "r_0000000000000000", "--tenant", "t"),
        ("log", "session", "s_0000000000000000"),
        ("replay", "verify", "r_0000000000000000"),
        ("replay", "verify", "--tenant", "t", "r_0000000000000000"),
    ],
)
def test_what_is_not_in_the_log_is_an_invocation_error(
    place: Place, arguments: tuple[str, ...]
) -> None:
    (place.data / "nats").mkdir(parents=True)
    missing = place.call(*arguments)
    assert missing.returncode == 2
    assert '0000000000000000"' in missing.stderr


def test_a_journal_that_was_tampered_with_is_not_proven(place: Place) -> None:
    place.proven = False
    server = place.serve()
    good, bad = place.run_agent(), place.run_agent()
    assert server.stop() == 0
    asyncio.run(_repeat_last_commit(place.data, bad))

    one = place.call("replay", "verify", bad)
    assert one.returncode == 1
    assert one.stdout.startswith(f"{bad}: NOT proven after 2 commit(s): journal of {bad}: commit 2")
    everything = place.call("replay", "verify", "--all")
    assert everything.returncode == 1
    assert everything.stdout.splitlines()[-1].startswith("1 of 2 runs proven")
    assert good not in everything.stdout
    log = place.call("log", "run", bad)
    assert log.returncode == 1
    assert "one is missing or doubled" in log.stderr


def test_a_tenant_with_a_long_name_is_a_tenant_like_any(place: Place) -> None:
    """Subjects hold only the hash of a name over 64 bytes, which is no name to ask for."""
    place.proven = False  # the proofs of tests go by the names in subjects
    name = "acme-" * 20
    server = place.serve()
    body = {"agent": "hello", "prompt": "hi", "tenant_id": name, "agent_id": "long"}
    httpx.post(f"{place.url}/v1/runs", json=body, trust_env=False).raise_for_status()
    status = httpx.get(f"{place.url}/v1/agents/long", trust_env=False).json()
    assert server.stop() == 0

    one = place.call("replay", "verify", status["run_id"])
    assert one.returncode == 0, one.stdout + one.stderr
    everything = place.call("replay", "verify", "--all")
    assert everything.stdout.startswith("1 of 1 runs proven (0 of them not ended yet): ")
    nobody = place.call("log", "tenant", "nobody")
    assert nobody.stderr == f'loomcycle: the log holds no run of tenant "nobody", but of "{name}"\n'
    events = place.call("log", "tenant", name, "--json").stdout.splitlines()
    assert {json.loads(event)["tenant"] for event in events} == {name}


async def _repeat_last_commit(data: Path, run_id: str) -> None:
    nats = await EmbeddedServer.start(data)
    key = load_master_key(data)
    store = await connect(nats.url, token=nats.token, master_key=key, name="intruder")
    subject = store.subjects.journal("", run_id)
    last = await store.log.last(subject)
    assert last is not None
    await store.log.append(subject, last.data)
    await store.close()
    await nats.stop()


# --- several processes --------------------------------------------------------------------


def workers_of(server: Running) -> list[int]:
    return [pid for pid in children_of(server.pid) if alive(pid)]


def test_workers_share_a_port_and_survive_each_other(place: Place) -> None:
    server = place.serve("--workers", "2")
    assert server.messages.splitlines()[-1].endswith("(2 workers)")
    first = workers_of(server)
    assert len(first) == 2
    place.run_agent()

    os.kill(first[0], signal.SIGKILL)
    until(lambda: "worker 1 serves again" in server.messages)
    now = workers_of(server)
    assert len(now) == 2
    assert first[1] in now
    place.run_agent()
    assert place.call("replay", "verify", "--all").stdout.startswith("2 of 2 runs proven")

    assert server.stop() == 0
    until(lambda: not any(map(alive, now)))


def test_workers_end_with_their_parent(place: Place) -> None:
    server = place.serve("--workers", "2")
    workers = workers_of(server)
    servers = [pid for worker in workers for pid in children_of(worker)]
    assert server.stop(signal.SIGKILL) == -signal.SIGKILL
    until(lambda: not any(map(alive, [*workers, *servers])), STOP_S)


def test_a_boot_that_fails_in_the_first_worker_ends_the_parent(place: Place) -> None:
    place.data.write_text("not a directory")
    server = place.start("serve", "--workers", "2", "--listen", "127.0.0.1:0")
    assert server.process.wait(LIMIT_S) == 1
    assert "cannot start: " in server.messages
    assert "worker 1 ended with status 1 before it served" in server.messages


def test_several_workers_take_a_free_port_together(place: Place) -> None:
    server = place.start("serve", "--workers", "2", "--listen", "127.0.0.1:0")
    until(lambda: "listening on" in server.messages or server.ended)
    bound = re.search(r"listening on (127\.0\.0\.1:[1-9]\d*) \(2 workers\)", server.messages)
    assert bound is not None, server.messages
    for _ in range(4):
        assert httpx.get(f"http://{bound[1]}/healthz", trust_env=False).status_code == 200
    assert server.stop(signal.SIGINT) == 0
