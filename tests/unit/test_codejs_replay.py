"""Turn-wise replay: what a program is given back, where it stops, and what it cannot notice."""

import random

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from replay.codejs import Call, Failed, Finished, Interpreter, Outcome, Program, ToolCall

TOOLS = ("Memory", "Channel", "Agent", "Read", "WebFetch", "mcp__srv__find")
LIMIT_S = 5.0


def program(source: str, **changes: object) -> Program:
    fields: dict[str, object] = {
        "source": source,
        "agent_name": "demo",
        "tools": TOOLS,
        "input": {"prompt": "p", "metadata": {}},
        "seed": "a_1|demo",
        "started_ms": 1_700_000_000_000,
    }
    return msgspec.convert({**fields, **changes}, Program, from_attributes=True)


def advance(source: str, *recorded: Call, **changes: object) -> Outcome:
    return Interpreter(program(source, **changes)).advance(recorded, time_limit_s=LIMIT_S)


def answered(call: Outcome, text: str, *, error: bool = False) -> Call:
    assert isinstance(call, ToolCall)
    return Call(call.name, call.input_json, text, error)


def message(outcome: Outcome, code: str) -> str:
    assert isinstance(outcome, Failed), outcome
    assert outcome.code == code
    assert outcome.message.startswith(code + ": ")
    return outcome.message


def test_the_first_unrecorded_call_is_the_outcome() -> None:
    source = "function run() { const a = Read({path: 'x'}); return a + Read({path: a}); }"
    first = advance(source)
    assert first == ToolCall(0, "Read", b'{"path":"x"}')
    second = advance(source, answered(first, "one"))
    assert second == ToolCall(1, "Read", b'{"path":"one"}')
    assert advance(source, answered(first, "one"), answered(second, "two")) == Finished("onetwo")


def test_a_kept_interpreter_and_a_new_one_answer_alike() -> None:
    source = """function run() {
      let text = "";
      for (let i = 0; i < 20; i++) text += Read({path: text + Math.random() + Date.now()});
      return text;
    }"""
    kept = Interpreter(program(source))
    recorded: list[Call] = []
    for turn in range(21):
        if turn == 10:
            kept.close()
        outcome = kept.advance(recorded, time_limit_s=LIMIT_S)
        assert outcome == advance(source, *recorded)
        if isinstance(outcome, ToolCall):
            recorded.append(answered(outcome, str(turn)))
    assert isinstance(outcome, Finished)


def test_an_interpreter_may_be_given_another_history() -> None:
    source = "function run() { return Read() + Read(); }"
    kept = Interpreter(program(source))
    one, two, other = (Call("Read", b"{}", text) for text in "abc")
    assert kept.advance([one, two], time_limit_s=LIMIT_S) == Finished("ab")
    assert kept.advance([other, two], time_limit_s=LIMIT_S) == Finished("cb")
    assert kept.advance([other], time_limit_s=LIMIT_S) == ToolCall(1, "Read", b"{}")


@pytest.mark.parametrize(
    "body",
    [
        "try { Read(); } catch (e) { for (;;); }",
        "try { Read(); } finally { for (;;); }",
        "for (;;) { try { Read(); return 'done'; } catch (e) {} }",
        "try { Read(); } catch (e) { WebFetch(); } return 'done';",
        "try { Read(); } finally { return 'mine'; }",
        "[1].map(() => { try { Read(); } catch (e) { throw new Error('mine'); } });",
        "const it = {[Symbol.iterator]: () => ({next: () => ({value: 1}),"
        " return() { for (;;); }})}; for (const x of it) Read();",
        "function* g() { try { yield 1; } finally { for (;;); } } for (const x of g()) Read();",
        "(async () => { try { Read(); } catch (e) { for (;;); } })();",
        "new Promise(() => Read()); return 'swallowed';",
        "new Promise(() => Read()); WebFetch(); return 'swallowed';",
        "({ get x() { return Read(); } }).x;",
        "JSON.stringify({ toJSON() { Read(); } });",
        "return { toJSON() { return Read(); } };",
        "return { get final_text() { return Read(); } };",
        "new Proxy({}, { get() { return Read(); } }).anything;",
        "WebFetch({ get x() { return Read(); } });",
        "[3, 1, 2].sort(() => Read());",
        "class A { static x = Read(); }",
        "String({ toString() { return Read(); } });",
    ],
)
def test_no_code_around_the_frontier_changes_the_outcome(body: str) -> None:
    assert advance(f"function run() {{ {body} }}") == ToolCall(0, "Read", b"{}")


def test_nothing_survives_between_turns() -> None:
    source = """var turns = (globalThis.turns || 0) + 1;
    function run() { Read({turns}); return turns; }"""
    first = advance(source)
    assert first == ToolCall(0, "Read", b'{"turns":1}')
    assert advance(source, answered(first, "")) == Finished("1")


def test_a_recorded_error_is_thrown_and_can_be_caught() -> None:
    source = """function run() {
      try { Read(); } catch (e) { return [e instanceof Error, e.name, e.message]; }
    }"""
    call = Call("Read", b"{}", 'exact "text"\n', is_error=True)
    assert advance(source, call) == Finished('[true,"Error","exact \\"text\\"\\n"]')


def test_an_uncaught_tool_error_fails_the_run_at_the_programs_line() -> None:
    source = "function run() {\n  Memory.get({key: 1});\n}"
    call = Call("Memory", b'{"key":1,"op":"get"}', "boom", is_error=True)
    text = message(advance(source, call), "code_agent_threw")
    assert text == "code_agent_threw: run: Error: boom (index.js:2:10)"


def test_inputs_are_compared_as_json() -> None:
    source = "function run() { return Read({b: [1, 1e21, 0.5, -0], a: {y: 'é', x: null}}); }"
    for given_input in (
        '{"a":{"x":null,"y":"é"},"b":[1,1e+21,0.5,0]}',
        ' {"b": [1.0, 1000000000000000000000, 5e-1, -0.0],\n "a": {"y": "\\u00e9", "x": null}}',
    ):
        assert advance(source, Call("Read", given_input.encode(), "same")) == Finished("same")


@pytest.mark.parametrize(
    ("recorded", "why"),
    [
        (Call("WebFetch", b'{"path":"x"}', ""), "another tool"),
        (Call("Read", b'{"path":"y"}', ""), "another value"),
        (Call("Read", b'{"path":"x","n":null}', ""), "another key"),
        (Call("Read", b'{"path":["x"]}', ""), "another type"),
        (Call("Read", b"not json", ""), "no JSON"),
        (Call("Read", b"[1]", ""), "another shape"),
    ],
)
def test_another_call_than_the_recorded_one_is_a_divergence(recorded: Call, why: str) -> None:
    source = "function run() { try { Read({path: 'x'}); } catch (e) {} return 'hidden'; }"
    text = message(advance(source, recorded), "code_agent_replay_divergence")
    assert "call 0: " in text, why
    assert f"the journal holds {recorded.name} {bytes(recorded.input).decode()}" in text
    assert 'the program made Read {"path":"x"}' in text
    assert "allowed_tools" in text


def test_a_divergence_counts_from_zero_and_cuts_long_inputs() -> None:
    source = "function run() { Read(); Read({path: 'y'.repeat(500)}); }"
    recorded = [Call("Read", b"{}", ""), Call("Read", b'{"path":"%s"}' % (b"x" * 500), "")]
    text = message(advance(source, *recorded), "code_agent_replay_divergence")
    assert "call 1: " in text
    assert f'Read {{"path":"{"x" * 111}…' in text
    assert f'Read {{"path":"{"y" * 111}…' in text


@pytest.mark.parametrize("ending", ["return 'early';", "throw new Error('early');"])
def test_ending_before_the_recorded_calls_are_used_up_is_a_divergence(ending: str) -> None:
    recorded = (Call("Read", b"{}", ""), Call("WebFetch", b'{"url":"u"}', ""))
    outcome = advance(f"function run() {{ Read(); {ending} }}", *recorded)
    text = message(outcome, "code_agent_replay_divergence")
    assert 'call 1: the journal holds WebFetch {"url":"u"}, the program ended without it' in text


def test_a_divergence_wins_over_a_cancellation_and_a_cancellation_over_a_call() -> None:
    interpreter = Interpreter(program("function run() { Read(); }"))
    answers = iter([None, "cancelled by an operator"] * 2)
    wrong = Call("WebFetch", b"{}", "")
    outcome = interpreter.advance([wrong], time_limit_s=1, cancelled_because=lambda: next(answers))
    message(outcome, "code_agent_replay_divergence")
    next(answers)
    outcome = interpreter.advance([], time_limit_s=1, cancelled_because=lambda: next(answers))
    assert message(outcome, "code_agent_cancelled").endswith("cancelled by an operator")


def test_a_cancellation_is_seen_while_a_program_loops() -> None:
    interpreter = Interpreter(program("function run() { for (;;); }"))
    answers = iter([None, "stop"])
    outcome = interpreter.advance([], time_limit_s=60, cancelled_because=lambda: next(answers))
    assert outcome == Failed("code_agent_cancelled", "code_agent_cancelled: stop")


json_values = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**53), 2**53) | st.text()
    | st.floats(-(2.0**53), 2.0**53) | st.floats(1e22, 1e300),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=12,
)  # fmt: skip
json_objects = st.dictionaries(st.text(), json_values, max_size=5)


@given(value=json_objects)
@settings(max_examples=80, deadline=None)
def test_any_json_reaches_the_tool_as_it_came_and_comes_back(value: dict[str, object]) -> None:
    source = "function run(input) { return { got: mcp__srv__find(input.metadata) }; }"
    given_input = {"metadata": value}
    call = advance(source, input=given_input)
    assert isinstance(call, ToolCall)
    assert msgspec.json.decode(call.input_json) == value
    text = msgspec.json.encode(value).decode()
    outcome = advance(source, Call("mcp__srv__find", text.encode(), text), input=given_input)
    assert isinstance(outcome, Finished)
    assert outcome.text is not None
    assert msgspec.json.decode(outcome.text) == {"got": value}


@given(seed=st.integers(0, 2**32), cut=st.integers(0, 12))
@settings(max_examples=30, deadline=None)
def test_any_recorded_prefix_replays_to_the_same_next_outcome(seed: int, cut: int) -> None:
    source = """function run() {
      const seen = [];
      for (let i = 0; i < 12; i++) {
        try {
          const r = Math.random() < 0.5 ? Memory.get({key: i, seen}) : Read({path: "" + i});
          seen.push(r === undefined ? null : r);
        } catch (e) {
          seen.push(e.message);
        }
      }
      return seen;
    }"""
    rng = random.Random(seed)
    interpreter = Interpreter(program(source, seed=str(seed)))
    recorded: list[Call] = []
    outcomes: list[Outcome] = []
    while True:
        outcomes.append(interpreter.advance(recorded, time_limit_s=LIMIT_S))
        if not isinstance(outcomes[-1], ToolCall):
            break
        text = rng.choice(["", "text", '{"v":[1,2]}', "7"])
        recorded.append(answered(outcomes[-1], text, error=rng.random() < 0.3))
    assert len(recorded) == 12
    assert isinstance(outcomes[-1], Finished)
    assert advance(source, *recorded[:cut], seed=str(seed)) == outcomes[cut]
