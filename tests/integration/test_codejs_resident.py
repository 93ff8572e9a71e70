"""A program held by a child process and one that is run again at every call cannot be told apart.

Each turn is asked of both. What a child cannot answer it does not answer: the other then decides.
"""

from __future__ import annotations

import asyncio
import math
import os
import random
import signal
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from loomcycle.resident_program import IDLE_S, Resident, Residents
from replay.codejs import Call, Failed, Finished, Interpreter, Outcome, Program, ToolCall
from tests.wire.gateway import until

pytestmark = pytest.mark.integration

ROOT = Path(__file__).resolve().parents[2]
TOOLS = ("Memory", "Agent", "Read", "mcp__srv__find")
LIMIT_S = 20.0

Answer = Callable[[ToolCall], tuple[str, bool]]


def interpreter(source: str, *, budget_s: float = 120.0, memory: int = 64 << 20) -> Interpreter:
    given_input = {"prompt": "pröm\0pt 😀", "metadata": {"list": [1, {"b": None}], "user_id": ""}}
    return Interpreter(
        Program(
            source, "demo", TOOLS, given_input, "seed", 1_700_000_000_000,
            memory_limit=memory, budget_s=budget_s,
        )
    )  # fmt: skip


@asynccontextmanager
async def resident(program: Interpreter) -> AsyncIterator[Resident]:
    """A place of its own; afterwards nothing of a child is left."""
    held = Residents().place(program)
    assert held is not None
    pids: set[int] = set()
    try:
        yield held
    finally:
        pids.add(held.pid)
        held.close()
        await comes(lambda: none_left(pids - {0}))


def none_left(pids: set[int]) -> bool:
    """Not even as a zombie."""
    return not any(process(pid).exists() for pid in pids)


async def comes(condition: Callable[[], bool]) -> None:
    """Wait until it holds."""

    async def holds() -> bool | None:
        return condition() or None

    await until(holds)


def process(pid: int) -> Path:
    return Path(f"/proc/{pid}")


def quiet(_: ToolCall) -> tuple[str, bool]:
    return "", False


async def compare(
    source: str, answer: Answer = quiet, *, known: int = 0
) -> tuple[Outcome, list[Call]]:
    """Run ``source`` in both forms; the last outcome, and the calls that led to it.

    The child begins after ``known`` calls.
    """
    program = interpreter(source)
    recorded: list[Call] = []
    async with resident(interpreter(source)) as held:
        while True:
            outcome = program.advance(recorded, time_limit_s=LIMIT_S)
            if len(recorded) >= known:
                assert await held.advance(recorded, time_limit_s=LIMIT_S) == outcome
            if not isinstance(outcome, ToolCall):
                return outcome, recorded
            text, failed = answer(outcome)
            recorded.append(Call(outcome.name, outcome.input_json, text, failed))


# Equal outcomes

STATEMENTS = [
    "Read({ path: 'p' + i, seen });",
    "seen.push(Memory.get({ key: seen.length, at: Date.now() }));",
    "seen.push(mcp__srv__find({ r: Math.random(), n: [undefined, -0, 1e21, 'é\\u0000\\ud800'] }));",
    "seen.push(Agent.spawn({ name: 'x', prompt: 'p'.repeat(3000) }));",
    "try { seen.push(Read()); } catch (e) { seen.push(e.name + e.message + e.stack); }",
    "try { Memory.set({ f: () => 1 }); } catch (e) { seen.push(e.message); }",
    "try { console.log(1); } catch (e) { seen.push(e.message); }",
    "try { ask('1'); } catch (e) { seen.push(e.message); }",
    "try { Read(7); } finally { seen.push('finally'); }",
    "new Promise(() => seen.push(Read({ inside: 'a promise' })));",
    "Memory.do({ z: 1, get a() { return Read({ inside: 'a getter' }); } });",
    "seen.push([2, 1].sort(() => (Read({ inside: 'sort' }) === 'text' ? 1 : -1)));",
    "for (const x of (function* () { yield Read({ g: 1 }); yield 2; })()) { seen.push(x); break; }",
    "seen.push(new Date(Date.UTC(2020, i)).toString(), new Date().getTimezoneOffset());",
    "seen.push(new Error('here').stack);",
    "seen.push(class { static x = Read({ inside: 'a class' }); }.x);",
    "seen.push(typeof input.prompt, input.prompt.length, Object.keys(globalThis).join());",
    "if (Math.random() < 0.2) throw new RangeError('thrown at ' + i);",
    "if (Math.random() < 0.2) return { final_text: seen };",
    "if (Math.random() < 0.1) throw { code: i };",
    "if (Math.random() < 0.1) null.property;",
    "Array.prototype.push.call(seen, i); String.prototype.toJSON = () => 'no';",
]
ENDINGS = [
    "return seen;", "return { final_text: seen.length };", "return '';", "", "return null;",
    "return { toJSON() { return Read({ inside: 'toJSON' }); } };", "return 0.1 + 0.2;",
    "return { get final_text() { return Read({ inside: 'final_text' }); } };",
    "throw new Error('at the end');", "return Promise.resolve(1);", "return () => 1;",
    "return { n: 1n };", "throw { toString() { return Read({ too: 'late' }); } };",
]  # fmt: skip
RESULTS = [
    "",
    "text",
    '{"v":[1,{"é":null}]}',
    "7",
    "nul \0 \u2028 😀 é",
    "x" * 70_000,
    "[1",
    "\ud800",
]


@given(
    body=st.lists(st.sampled_from(STATEMENTS), min_size=1, max_size=8),
    ending=st.sampled_from(ENDINGS),
    rounds=st.integers(1, 3),
    known=st.integers(0, 6),
    seed=st.integers(0, 2**32),
)
@settings(max_examples=100, deadline=None, suppress_health_check=list(HealthCheck))
def test_any_program_has_the_same_outcomes_in_a_child(
    body: list[str], ending: str, rounds: int, known: int, seed: int
) -> None:
    source = f"""function run(input) {{
      const seen = [];
      for (let i = 0; i < {rounds}; i++) {{ {" ".join(body)} }}
      {ending}
    }}"""
    rng = random.Random(seed)

    def answer(_: ToolCall) -> tuple[str, bool]:
        return rng.choice(RESULTS), rng.random() < 0.2

    asyncio.run(compare(source, answer, known=known))


@pytest.mark.parametrize("before", [0, 1])
async def test_a_program_can_call_itself_as_deep_in_a_child(before: int) -> None:
    source = f"""function run() {{
      if ({before}) Read();
      let depth = 0;
      const deeper = () => {{ depth++; deeper(); }};
      try {{ deeper(); }} catch (e) {{ Read({{ depth, message: e.message }}); }}
      return depth;
    }}"""
    outcome, recorded = await compare(source)
    assert isinstance(outcome, Finished)
    assert int(outcome.text or 0) > 1000
    assert len(recorded) == before + 1


async def test_a_call_where_no_stack_is_left_is_decided_by_running_again() -> None:
    source = """let at = -1;
    function deeper(level) {
      try { deeper(level + 1); } catch (e) {}
      if (at < 0) new Promise(() => { Read(); at = level; });
    }
    function run() { deeper(0); Read({ at }); }"""
    program = interpreter(source)
    recorded: list[Call] = []
    async with resident(program) as held:
        for _ in range(2):
            outcome = program.advance(recorded, time_limit_s=LIMIT_S)
            assert await held.advance(recorded, time_limit_s=LIMIT_S) in (None, outcome)
            assert isinstance(outcome, ToolCall)
            recorded.append(Call("Read", outcome.input_json, ""))
    assert outcome != ToolCall(1, "Read", b'{"at":0}')


# A cache

LOOP = "function run() { let s = ''; for (let i = 0; i < 50; i++) s += Read({ i, s }); return s; }"


def numbered(call: ToolCall) -> Call:
    return Call(call.name, call.input_json, str(call.index % 10))


async def test_a_run_goes_on_when_its_child_is_killed() -> None:
    program = interpreter(LOOP)
    recorded: list[Call] = []
    lost = 0
    places = Residents()
    held = places.place(program)
    while True:
        outcome = await held.advance(recorded, time_limit_s=LIMIT_S) if held is not None else None
        if outcome is None:
            lost += 1
            outcome = program.advance(recorded, time_limit_s=LIMIT_S)
            held = places.place(program)
        if not isinstance(outcome, ToolCall):
            break
        recorded.append(numbered(outcome))
        if len(recorded) % 15 == 0:
            assert held is not None
            os.kill(held.pid, signal.SIGKILL)
    assert lost == 3
    assert (outcome, recorded) == await compare(LOOP, lambda call: (str(call.index % 10), False))


@pytest.mark.parametrize(
    "other",
    [
        Call("Read", b'{"i": 0, "s": ""}', "spaced"),
        Call("Read", b'{"i":0,"s":"[redacted]"}', "masked"),
        Call("Memory", b'{"i":0,"s":""}', "another tool"),
    ],
)
async def test_another_call_than_the_one_asked_for_is_not_answered(other: Call) -> None:
    async with resident(interpreter(LOOP)) as held:
        call = await held.advance([], time_limit_s=LIMIT_S)
        assert call == ToolCall(0, "Read", b'{"i":0,"s":""}')
        assert await held.advance([other], time_limit_s=LIMIT_S) is None
        assert held.pid == 0


async def test_a_journal_that_did_not_grow_by_one_call_is_not_answered() -> None:
    async with resident(interpreter(LOOP)) as held:
        await held.advance([], time_limit_s=LIMIT_S)
        assert await held.advance([], time_limit_s=LIMIT_S) is None


async def test_a_journal_that_is_not_the_programs_is_not_answered() -> None:
    for recorded in ([Call("Memory", b"{}", "")], [Call("Read", b'{"i":0,"s":""}', "")] * 2):
        async with resident(interpreter(LOOP)) as held:
            assert await held.advance(recorded, time_limit_s=LIMIT_S) is None


async def test_children_are_few_and_the_longest_idle_one_makes_room() -> None:
    places = Residents(most=2)
    first, second = (places.place(interpreter(LOOP)) for _ in range(2))
    assert first is not None
    assert second is not None
    for held in (first, second):
        assert isinstance(await held.advance([], time_limit_s=LIMIT_S), ToolCall)
    assert places.place(interpreter(LOOP)) is None
    first.idle_since -= 2 * IDLE_S
    third = places.place(interpreter(LOOP))
    assert third is not None
    assert first.pid == 0
    assert second.pid != 0
    assert await first.advance([Call("Read", b'{"i":0,"s":""}', "")], time_limit_s=LIMIT_S) is None
    for held in (first, second, third):
        held.close()


async def test_a_cancelled_turn_ends_its_child() -> None:
    source = "function run() { Read(); for (;;); }"
    async with resident(interpreter(source)) as held:
        await held.advance([], time_limit_s=LIMIT_S)
        pid = held.pid
        turn = asyncio.create_task(held.advance([Call("Read", b"{}", "")], time_limit_s=LIMIT_S))
        await comes(lambda: held.idle_since == math.inf and is_running(pid))
        turn.cancel()
        with pytest.raises(asyncio.CancelledError):
            await turn
        await comes(lambda: none_left({pid}))


def is_running(pid: int) -> bool:
    return (process(pid) / "stat").read_text().rpartition(")")[2].split()[0] == "R"


# Limits


@pytest.mark.parametrize(
    "endless",
    [
        "for (;;);",
        "for (;;) { try { for (;;); } finally { continue; } }",
        "for (;;) new Promise(() => { for (;;); });",
        "'a'.repeat(1 << 21).indexOf('a'.repeat(1 << 20) + 'b');",
    ],
)
async def test_nothing_can_run_longer_than_its_time(endless: str) -> None:
    source = f"function run() {{ Read(); {endless} }}"
    async with resident(interpreter(source, budget_s=7)) as held:
        call = await held.advance([], time_limit_s=LIMIT_S)
        assert isinstance(call, ToolCall)
        pid = held.pid
        outcome = await held.advance([Call("Read", b"{}", "")], time_limit_s=0.3)
        await comes(lambda: none_left({pid}))
    assert isinstance(outcome, Failed)
    assert outcome.code == "code_agent_timeout"
    assert "7s" in outcome.message


async def test_the_end_of_the_budget_has_the_same_words() -> None:
    source = "function run() { for (;;); }"
    plain = interpreter(source, budget_s=90).advance([], time_limit_s=0.05)
    for time_s in (0.3, 0.0, -1.0):
        async with resident(interpreter(source, budget_s=90)) as held:
            assert await held.advance([], time_limit_s=time_s) == plain


@pytest.mark.parametrize(
    "hungry",
    [
        "const all = []; for (;;) all.push('x'.repeat(1 << 20) + all.length);",
        "const all = []; for (;;) all.push({});",
        "const a = []; try { for (;;) a.push(new Uint8Array(1 << 20)); } catch {} Read({b: 1});",
        "new Uint8Array(40 << 20).fill(1); Read({b: 1});",
    ],
)
async def test_a_program_that_comes_near_its_memory_limit_is_run_again(hungry: str) -> None:
    source = f"function run() {{ Read({{a: 1}}); {hungry} }}"
    async with resident(interpreter(source)) as held:
        assert isinstance(await held.advance([], time_limit_s=LIMIT_S), ToolCall)
        recorded = [Call("Read", b'{"a":1}', "")]
        assert await held.advance(recorded, time_limit_s=LIMIT_S) is None


async def test_recorded_results_do_not_count_as_the_programs_memory() -> None:
    source = (
        "function run() { let n = 0; for (let i = 0; i < 60; i++) n += Read().length; return n; }"
    )
    outcome, _ = await compare(source, lambda _: ("x" * (1 << 20), False), known=30)
    assert outcome == Finished(str(60 << 20))


# What a child has


async def test_a_child_inherits_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ANTHROPIC_API_KEY", "sk-secret")
    reading, writing = os.pipe()
    os.set_inheritable(reading, True)
    try:
        async with resident(interpreter(LOOP)) as held:
            await held.advance([], time_limit_s=LIMIT_S)
            child = process(held.pid)
            assert b"secret" not in (child / "environ").read_bytes()
            files = {os.readlink(fd) for fd in (child / "fd").iterdir()}
            line = {name for name in files if name.startswith("socket:")}
            assert len(line) == 1
            assert files - line == {"/dev/null", f"/proc/{held.pid}/status"}
    finally:
        os.close(reading)
        os.close(writing)


async def test_no_file_is_left_open_by_children_that_ended() -> None:
    program = interpreter(LOOP)
    async with resident(program) as held:
        await held.advance([], time_limit_s=LIMIT_S)
    before = len(os.listdir("/proc/self/fd"))
    for _ in range(5):
        async with resident(program) as held:
            await held.advance([], time_limit_s=LIMIT_S)
    await comes(lambda: len(os.listdir("/proc/self/fd")) <= before)


PARENT = """
import asyncio
from loomcycle.resident_program import Residents
from replay.codejs import Call, Interpreter, Program

async def main():
    source = "function run() { Read(); %s }"
    program = Program(source, "demo", ["Read"], {}, "s", 0)
    held = Residents().place(Interpreter(program))
    await held.advance([], time_limit_s=600)
    print(held.pid, flush=True)
    await held.advance([Call("Read", b"{}", "")], time_limit_s=600)

asyncio.run(main())
"""


@pytest.mark.parametrize("doing", ["Read();", "for (;;);"])
async def test_a_child_does_not_outlive_its_parent(doing: str) -> None:
    parent = await asyncio.create_subprocess_exec(
        sys.executable, "-c", PARENT % doing, cwd=ROOT, stdout=asyncio.subprocess.PIPE
    )
    assert parent.stdout is not None
    pid = int(await parent.stdout.readline())
    assert process(pid).exists()
    parent.kill()
    await parent.wait()
    await comes(lambda: none_left({pid}))
