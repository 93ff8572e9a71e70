"""What is kept between calls of one binding, or made before a turn, is not to be noticed."""

import threading

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from replay.codejs import Call, Failed, Finished, Interpreter, Outcome, Program, ToolCall
from replay.codejs.contexts import Contexts, contexts_for

TOOLS = ("Memory", "Read")


def interpreter(source: str, **given_input: object) -> Interpreter:
    return Interpreter(Program(source, "demo", TOOLS, given_input, "s", 1_700_000_000_000))


def calls(source: str, **given_input: object) -> list[str]:
    """The inputs of all calls of a run whose tools answer with nothing."""
    running = interpreter(source, **given_input)
    recorded: list[Call] = []
    while True:
        outcome = running.advance(recorded, time_limit_s=5)
        if not isinstance(outcome, ToolCall):
            assert isinstance(outcome, Finished), outcome
            return [bytes(call.input).decode() for call in recorded]
        recorded.append(Call(outcome.name, outcome.input_json, ""))


def made(*arguments: str) -> list[str]:
    """The inputs of consecutive calls of one binding, one for each argument expression."""
    return calls(f"function run() {{ for (const f of [{_lazy(arguments)}]) Memory.do(f()); }}")


def _lazy(arguments: tuple[str, ...]) -> str:
    return ",".join(f"() => ({argument})" for argument in arguments)


@pytest.mark.parametrize(
    ("arguments", "inputs"),
    [
        (("{b: 1, a: 'x'}", "{b: 1, a: 'x'}", "{b: 2, a: 'x'}", "{a: 'x', b: 2}"),
         ['{"a":"x","b":1,"op":"do"}', '{"a":"x","b":1,"op":"do"}',
          '{"a":"x","b":2,"op":"do"}', '{"a":"x","b":2,"op":"do"}']),
        (("{a: 1}", "{a: '1'}", "{a: true}", "{a: null}", "{a: undefined}", "{a: 1}"),
         ['{"a":1,"op":"do"}', '{"a":"1","op":"do"}', '{"a":true,"op":"do"}',
          '{"a":null,"op":"do"}', '{"a":null,"op":"do"}', '{"a":1,"op":"do"}']),
        (("{a: 0}", "{a: -0}", "{a: 1e21}", "{a: 1e21}"),
         ['{"a":0,"op":"do"}', '{"a":0,"op":"do"}', '{"a":1e+21,"op":"do"}',
          '{"a":1e+21,"op":"do"}']),
        (("{op: 'x', z: 1}", "{op: 'y', z: 1}", "{z: 1}", "{op: 'x'}", "{}", "undefined", "{}"),
         ['{"op":"do","z":1}'] * 3 + ['{"op":"do"}'] * 4),
        (("{a: 1, z: 1}", "{a: 1}", "{z: 1}", "{a: 1, z: 1}"),
         ['{"a":1,"op":"do","z":1}', '{"a":1,"op":"do"}', '{"op":"do","z":1}',
          '{"a":1,"op":"do","z":1}']),
        (("{l: [1]}", "{l: [1, 2]}", "{l: {b: 1, a: 2}}", "{l: new Date(0)}"),
         ['{"l":[1],"op":"do"}', '{"l":[1,2],"op":"do"}', '{"l":{"a":2,"b":1},"op":"do"}',
          '{"l":"1970-01-01T00:00:00.000Z","op":"do"}']),
    ],
)  # fmt: skip
def test_each_call_sends_its_own_argument(arguments: tuple[str, ...], inputs: list[str]) -> None:
    assert made(*arguments) == inputs


def test_one_object_that_changes_between_calls_is_sent_as_it_is_at_each() -> None:
    source = """function run() {
      const o = { n: 0, list: [] };
      for (let i = 0; i < 3; i++) { Read(o); o.n++; o.list.push(i); }
      delete o.list;
      Read(o);
    }"""
    assert calls(source) == [
        '{"list":[],"n":0}', '{"list":[0],"n":1}', '{"list":[0,1],"n":2}', '{"n":3}',
    ]  # fmt: skip


def test_objects_with_many_fields_are_sorted_too() -> None:
    source = """function run(input) {
      for (let size = 14; size < 20; size++) {
        const o = {};
        for (let i = size; i > 0; i--) o["k" + i] = i;
        Memory.do(o);
        Memory.do(o);
      }
    }"""
    sizes = [size for size in range(14, 20) for _ in range(2)]
    for text, size in zip(calls(source), sizes, strict=True):
        fields = msgspec.json.decode(text, type=dict[str, object])
        assert fields == {"op": "do", **{f"k{i}": i for i in range(1, size + 1)}}
        assert list(fields) == sorted(fields)


def test_a_getter_may_call_the_same_binding() -> None:
    source = """function run() {
      for (let i = 0; i < 2; i++) {
        Read({ a: "outer", get b() { Read({ a: "inner", b: i }); return "b" + i; }, c: "c" });
      }
    }"""
    assert calls(source) == [
        '{"a":"inner","b":0}', '{"a":"outer","b":"b0","c":"c"}',
        '{"a":"inner","b":1}', '{"a":"outer","b":"b1","c":"c"}',
    ]  # fmt: skip


def test_a_getter_with_equal_fields_may_call_the_same_binding() -> None:
    source = """function run() {
      const nested = (depth) => ({
        a: depth, get b() { if (depth) Read(nested(depth - 1)); return 7; },
      });
      Read(nested(2));
      Read(nested(1));
    }"""
    assert calls(source) == [f'{{"a":{depth},"b":7}}' for depth in (0, 1, 2, 0, 1)]


def test_a_refused_value_leaves_nothing_behind() -> None:
    source = """function run() {
      for (const v of ["x", NaN, () => 1, "x", 1n, "y"]) {
        try { Read({ a: "same", v }); } catch (e) { if (!(e instanceof TypeError)) throw e; }
      }
    }"""
    assert calls(source) == [f'{{"a":"same","v":"{v}"}}' for v in "xxy"]


def test_a_hostile_prototype_is_not_asked_about_what_is_kept() -> None:
    source = """
      const evil = { get() { throw new Error("got"); }, set() { throw new Error("set"); } };
      for (const proto of [Array.prototype, Object.prototype, String.prototype]) {
        for (const name of [0, 1, 2, "name", "head", "value", "next", "text", "length"]) {
          try { Object.defineProperty(proto, name, evil); } catch (e) {}
        }
      }
      function run() { for (let i = 0; i < 3; i++) Read({ b: "x", a: i }); }
    """
    assert calls(source) == [f'{{"a":{i},"b":"x"}}' for i in range(3)]


values = (
    st.none() | st.booleans() | st.integers(-3, 3) | st.text("aé😀\"", max_size=2)
    | st.text(max_size=300) | st.lists(st.integers(0, 2), max_size=2)
)  # fmt: skip
objects = st.dictionaries(st.sampled_from(["op", "a", "b", "z", "__proto__", "1"]), values)


@given(arguments=st.lists(objects, max_size=8))
@settings(max_examples=60, deadline=None)
def test_a_sequence_of_calls_sends_what_each_call_alone_sends(
    arguments: list[dict[str, object]],
) -> None:
    source = """function run(input) {
      for (const argument of input.all) { Memory.do(argument); Read(argument); }
    }"""
    together = calls(source, all=arguments)
    alone = [text for argument in arguments for text in calls(source, all=[argument])]
    assert together == alone
    decoded = [msgspec.json.decode(text) for text in together]
    assert decoded[1::2] == arguments
    assert decoded[0::2] == [{**argument, "op": "do"} for argument in arguments]


# Made before a turn


def test_a_prepared_turn_answers_as_any_other() -> None:
    source = """function run() {
      let text = "";
      for (let i = 0; i < 5; i++) text += Read({ text, n: Math.random(), at: Date.now() });
      return text + new Error().stack;
    }"""
    prepared, plain = interpreter(source), interpreter(source)
    recorded: list[Call] = []
    outcome: Outcome | None = None
    while not isinstance(outcome, Finished):
        prepared.prepare()
        outcome = prepared.advance(recorded, time_limit_s=5)
        assert outcome == plain.advance(recorded, time_limit_s=5)
        if isinstance(outcome, ToolCall):
            recorded.append(Call(outcome.name, outcome.input_json, str(len(recorded))))
    assert len(recorded) == 5


def test_what_a_program_does_to_its_context_stays_there() -> None:
    spoil = interpreter("""
      Object.prototype.toString = Array.prototype.push = Math.random = null;
      globalThis.left = 1;
      function run() { return "spoilt"; }""")
    look = interpreter("""function run() {
      return [typeof left, typeof Math.random, typeof Object.prototype.toString];
    }""")
    for _ in range(3):
        spoil.prepare()
        look.prepare()
        assert spoil.advance([], time_limit_s=5) == Finished("spoilt")
        assert look.advance([], time_limit_s=5) == Finished('["undefined","function","function"]')


def test_limits_hold_in_a_prepared_turn() -> None:
    for source in ("function run() { for (;;); }", "function run() { (function f() { f(); })(); }"):
        running = interpreter(source)
        plain = running.advance([], time_limit_s=0.1)
        running.prepare()
        assert running.advance([], time_limit_s=0.1) == plain
        assert isinstance(plain, Failed)


def test_a_context_made_by_one_thread_serves_another() -> None:
    running = interpreter("function run() { let d = 0; (function f() { d++; f(); })(); }")
    plain = running.advance([], time_limit_s=5)
    maker = threading.Thread(target=running.prepare)
    maker.start()
    maker.join()
    assert running.advance([], time_limit_s=5) == plain


def test_few_contexts_are_kept_and_each_is_given_once() -> None:
    contexts = Contexts(256)
    for _ in range(50):
        contexts.prepare()
    assert 0 < contexts.kept <= 8
    taken = [contexts.take() for _ in range(20)]
    assert len({id(ready.context) for ready in taken}) == 20
    assert contexts.kept == 0


@pytest.mark.parametrize("lines", [1, 255, 256, 257, 5_000])
def test_an_error_in_the_last_line_of_a_program_has_its_position(lines: int) -> None:
    body = "\n" * (lines - 1) + "function run() { throw new Error('here'); }"
    outcome = interpreter(body).advance([], time_limit_s=5)
    assert isinstance(outcome, Failed)
    assert f"Error: here (index.js:{lines}:" in outcome.message


def test_programs_of_one_size_share_their_contexts() -> None:
    assert contexts_for(1) is contexts_for(200)
    assert contexts_for(300) is contexts_for(500)
    assert contexts_for(300) is not contexts_for(3_000)
