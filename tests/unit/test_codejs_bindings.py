"""Tool bindings, the program's input and its return value, as the program sees them."""

import pytest
from msgspec.structs import replace

from replay.codejs import Call, Failed, Finished, Interpreter, Outcome, Program, ToolCall, run_input
from replay.program import program_of
from tests.stories import opens, told

TOOLS = ("Memory", "Channel", "Agent", "Read", "Context", "mcp__my-server__find", "a2a__p__s")


def advance(source: str, *recorded: Call, given: dict[str, object] | None = None) -> Outcome:
    program = Program(source, "demo", TOOLS, given or {}, "s", 1_700_000_000_000)
    return Interpreter(program).advance(recorded, time_limit_s=5)


def run(body: str, *recorded: Call) -> Outcome:
    return advance(f"function run(input) {{ {body} }}", *recorded)


def evaluate(expression: str) -> str | None:
    outcome = run(f"return {expression};")
    assert isinstance(outcome, Finished), outcome
    return outcome.text


def sent(expression: str) -> tuple[str, str]:
    outcome = run(f"{expression};")
    assert isinstance(outcome, ToolCall), outcome
    return outcome.name, outcome.input_json.decode()


def thrown(expression: str) -> str:
    """Name and message of the exception that the program can catch."""
    outcome = run(f"try {{ {expression} }} catch (e) {{ return e.name + ': ' + e.message; }}")
    assert isinstance(outcome, Finished), outcome
    assert outcome.text is not None
    return outcome.text


@pytest.mark.parametrize(
    ("expression", "tool", "text"),
    [
        ("Memory.get({scope: 'user', key: 'k'})", "Memory",
         '{"key":"k","op":"get","scope":"user"}'),
        ("Memory.set({op: 'get', value: 1})", "Memory", '{"op":"set","value":1}'),
        ("Memory.any_thing()", "Memory", '{"op":"any_thing"}'),
        ("Memory['strange \"op\"'](null)", "Memory", '{"op":"strange \\"op\\""}'),
        ("Memory.__proto__({a: 1})", "Memory", '{"a":1,"op":"__proto__"}'),
        ("(0, Memory.list)({z: 1})", "Memory", '{"op":"list","z":1}'),
        ("Channel.publish({channel: 'c', payload: {b: 1, a: 2}})", "Channel",
         '{"channel":"c","op":"publish","payload":{"a":2,"b":1}}'),
        ("Agent.spawn({op: 'parallel_spawn', spawns: []})", "Agent",
         '{"op":"parallel_spawn","spawns":[]}'),
        ("Agent.spawn()", "Agent", "{}"),
        ("Read({path: 'x', op: 'kept'})", "Read", '{"op":"kept","path":"x"}'),
        ("Read()", "Read", "{}"),
        ("Read(null)", "Read", "{}"),
        ("Read(undefined, {ignored: 1})", "Read", "{}"),
        ("Read.call(5, {a: 1}, {b: 2})", "Read", '{"a":1}'),
        ("globalThis['mcp__my-server__find']({q: 1})", "mcp__my-server__find", '{"q":1}'),
        ("a2a__p__s({q: 1})", "a2a__p__s", '{"q":1}'),
    ],
)  # fmt: skip
def test_a_binding_sends_the_tools_input(expression: str, tool: str, text: str) -> None:
    assert sent(expression) == (tool, text)


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ("undefined", "null"), ("null", "null"), ("true", "true"), ("[,1]", "[null,1]"),
        ("[undefined, null]", "[null,null]"), ("-0", "0"), ("1e21", "1e+21"), ("0.1", "0.1"),
        ("2 ** 53", "9007199254740992"), ("'\\ud83d\\ude00é\\u0000'", '"😀é\\u0000"'),
        ("'half \\ud83d'", '"half \ufffd"'), ("new Date(0)", '"1970-01-01T00:00:00.000Z"'),
        ("new (class extends Date {})(0)", '"1970-01-01T00:00:00.000Z"'),
        ("{ toJSON: undefined, b: 1 }", '{"b":1,"toJSON":null}'),
        ("{ b: { z: 1, a: 2 }, a: [{ y: 1, x: 2 }] }", '{"a":[{"x":2,"y":1}],"b":{"a":2,"z":1}}'),
        ("{ 10: 1, 9: 2, b: 3, B: 4, '': 5 }", '{"":5,"10":1,"9":2,"B":4,"b":3}'),
        ("new (class { constructor() { this.x = 1 } get hidden() { return 1 } })()", '{"x":1}'),
        ("Object.create({ inherited: 1 })", "{}"), ("Object.create(null)", "{}"),
        ("{ [Symbol('s')]: 1 }", "{}"), ("{ get x() { return 'got' } }", '{"x":"got"}'),
        ("JSON.parse('{\"__proto__\": 1}')", '{"__proto__":1}'),
    ],
)  # fmt: skip
def test_values_are_encoded_as_canonical_json(value: str, text: str) -> None:
    assert sent(f"Read({{v: {value}}})") == ("Read", f'{{"v":{text}}}')


@pytest.mark.parametrize("argument", ["'x'", "1", "true", "[]", "() => 1", "Symbol()", "1n",
                                      "new Proxy([], {})", "new Date()"])  # fmt: skip
def test_an_argument_must_be_an_object(argument: str) -> None:
    assert thrown(f"Read({argument})") == "TypeError: Read: argument must be an object"
    text = thrown(f"Memory.get({argument})")
    assert text == "TypeError: Memory.get: argument must be an object"


@pytest.mark.parametrize(
    "value",
    ["NaN", "Infinity", "-Infinity", "() => 1", "class {}", "1n", "Symbol()", "new Date(NaN)",
     "new Date(8e15)", "[NaN]", "{ deep: [{ x: NaN }] }", "Read", "Memory.get",
     "(() => { const a = {}; a.a = a; return a; })()",
     "(() => { const a = []; a[0] = a; return a; })()"],
)  # fmt: skip
def test_what_json_cannot_hold_is_refused(value: str) -> None:
    text = thrown(f"Read({{ field: {value} }})")
    assert text.startswith("TypeError: Read: encoding arguments: ")


REFUSED = [
    ("{ x: NaN }", "NaN", '"x"', '"x"'),
    ("{ a: [1, [Infinity]] }", "Infinity", '"a"[1][0]', "0"),
    ("{ b: 1, a: { 'c d': [{}, { e: new Date(NaN) }] } }", "an invalid Date",
     '"a"["c d"][1]["e"]', '"e"'),
    ("{ a: { get x() { try { Read({ b: [[() => 1]] }) } catch (e) {} return 1n } } }", "a bigint",
     '"a"["x"]', '"x"'),
]  # fmt: skip


@pytest.mark.parametrize(("argument", "what", "place", "name"), REFUSED)
def test_a_refusal_says_where_the_value_stands(
    argument: str, what: str, place: str, name: str
) -> None:
    """Runs that began before it did say the last name, as ever: their programs may have read it."""
    source = f"function run() {{ try {{ Read({argument}) }} catch (e) {{ return e.message }} }}"
    begin = Program(source, "demo", TOOLS, {}, "s", 1_700_000_000_000)
    for program, shown in ((begin, place), (replace(begin, whole_paths=False), name)):
        assert Interpreter(program).advance((), time_limit_s=5) == Finished(
            f"Read: encoding arguments: {what} at {shown} is not a JSON value"
        )


@pytest.mark.parametrize(("machine", "whole"), [(1, False), (2, False), (3, True)])
def test_the_machine_of_a_run_decides_how_a_refusal_reads(machine: int, whole: bool) -> None:
    assert program_of(told(*opens(machine=machine))).whole_paths is whole


def test_a_refused_argument_is_no_call() -> None:
    body = "try { Read({ n: NaN }); } catch (e) {} return Read({ n: 1 });"
    assert run(body, Call("Read", b'{"n":1}', "first")) == Finished("first")


@pytest.mark.parametrize(
    ("call", "recorded", "text", "seen"),
    [
        ("Memory.get()", '{"op":"get"}', '{"value":[1]}', '[{"value":[1]}]'),
        ("Memory.get()", '{"op":"get"}', "plain text", '["plain text"]'),
        ("Memory.get()", '{"op":"get"}', "", "[null]"),
        ("Channel.peek()", '{"op":"peek"}', "3", "[3]"),
        ("Agent.spawn()", "{}", "[sub-agent agent_id=a]\nhi", '["[sub-agent agent_id=a]\\nhi"]'),
        ("Agent.spawn()", "{}", '{"results":[]}', '[{"results":[]}]'),
        ("globalThis['mcp__my-server__find']()", "{}", '{"a":1}', '[{"a":1}]'),
        ("globalThis['mcp__my-server__find']()", "{}", "{broken", '["{broken"]'),
        ("Read()", "{}", '{"a":1}', '["{\\"a\\":1}"]'),
        ("Read()", "{}", "a\0b\ud800", '["a\\u0000b?"]'),
        ("Context()", "{}", "[1]", '["[1]"]'),
    ],
)
def test_results_are_parsed_or_raw(call: str, recorded: str, text: str, seen: str) -> None:
    tool = call.split(".")[0] if "." in call and "mcp" not in call else call.rstrip("()")
    tool = "mcp__my-server__find" if "mcp" in call else tool
    outcome = run(f"return [{call}];", Call(tool, recorded.encode(), text))
    assert outcome == Finished(seen)


def test_an_empty_result_is_undefined() -> None:
    assert run("return typeof Read();", Call("Read", b"{}", "")) == Finished("undefined")


@pytest.mark.parametrize(
    ("expression", "expected"),
    [
        ("Object.keys(Memory)", "[]"),
        ("[typeof Memory, typeof Read, typeof Agent, typeof Agent.spawn]",
         '["object","function","object","function"]'),
        ("typeof Memory.then + typeof Memory.catch + typeof Memory.finally",
         "undefinedundefinedundefined"),
        ("Memory.constructor === Object", "true"),
        ("Memory.hasOwnProperty === Object.prototype.hasOwnProperty", "true"),
        ("[Memory.toString(), `${Memory}`, Memory.valueOf() === Memory]",
         '["[object Object]","[object Object]",true]'),
        ("(Memory.get = 1, typeof Memory.get)", "function"),
        ("(delete Memory.get, typeof Memory.get)", "function"),
        ("Memory.get === Memory.get", "true"),
        ("typeof Memory[Symbol.iterator]", "undefined"),
        ("Object.keys(Agent)", '["spawn"]'),
        ("Read.name", "Read"),
        ("typeof WebFetch", "undefined"),
        ("(Object.setPrototypeOf(Memory, { then: 1 }), typeof Memory.then)", "undefined"),
    ],
)  # fmt: skip
def test_binding_objects_look_plain(expression: str, expected: str) -> None:
    assert evaluate(expression) == expected


def test_assignments_to_bindings_are_ignored_in_strict_code_too() -> None:
    body = "'use strict'; Memory.get = 1; delete Memory.set; Memory.list({});"
    assert sent(body) == ("Memory", '{"op":"list"}')


def test_a_tool_that_is_not_visible_does_not_exist() -> None:
    assert thrown("WebFetch({})") == "ReferenceError: WebFetch is not defined"
    assert thrown("Agent.parallel({})").startswith("TypeError: ")


@pytest.mark.parametrize("call", ["Read({})", "Memory.get({})", "Agent.spawn({})"])
def test_tools_cannot_be_called_outside_run(call: str) -> None:
    outcome = advance(f"{call}; function run() {{}}")
    assert isinstance(outcome, Failed)
    assert outcome.message.startswith("code_agent_threw: evaluating index.js: Error: ")
    assert "while run(input) is executing" in outcome.message


# Input


def test_input_keys_ascend_at_every_level() -> None:
    given: dict[str, object] = run_input(
        "hi",
        {"z": [{"b": 1, "a": 2}], "user_id": "forged", "agent": "forged", "A": {"d": 1, "c": 2}},
        user_id="u1",
        agent_name="demo",
        payload_metadata={"y": 1, "x": {"q": 1, "p": 2}},
    )
    assert advance("const run = (input) => input", given=given) == Finished(
        '{"metadata":{"A":{"c":2,"d":1},"agent":"demo","user_id":"u1","z":[{"a":2,"b":1}]},'
        '"payload_metadata":{"x":{"p":2,"q":1},"y":1},"prompt":"hi"}'
    )


def test_empty_payload_metadata_is_absent() -> None:
    given = run_input("", {}, user_id="", agent_name="a", payload_metadata={})
    assert given == {"prompt": "", "metadata": {"user_id": "", "agent": "a"}}


# Return values


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ("({ final_text: 'done', more: 1 })", "done"), ("({ final_text: 5 })", "5"),
        ("({ final_text: { a: 1 } })", "[object Object]"), ("({ final_text: '' })", None),
        ("({ final_text: null, a: 1 })", '{"final_text":null,"a":1}'),
        ("({ final_text: undefined, a: 1 })", '{"a":1}'), ("({ a: [1, 'x'] })", '{"a":[1,"x"]}'),
        ("[1, 2]", "[1,2]"), ("'text'", "text"), ("1.5", "1.5"), ("NaN", "NaN"), ("0", "0"),
        ("false", "false"), ("10n", "10"), ("''", None), ("null", None), ("undefined", None),
        ("'\\ud83d'", "\ufffd"), ("'a\\u0000b'", "a\0b"),
        ("new Date(0)", '"1970-01-01T00:00:00.000Z"'),
        ("'ab'.repeat(1e5) + 'é'", "ab" * 100_000 + "é"),
    ],
)  # fmt: skip
def test_return_values_become_the_final_text(value: str, text: str | None) -> None:
    assert evaluate(value) == text


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("async function run() { Read({}); }", "run: run must be an ordinary function"),
        ("const run = async () => 1", "run: run must be an ordinary function"),
        ("function* run() { Read({}); }", "run: run must be an ordinary function"),
        ("function run() { return Promise.resolve(1); }", "run: TypeError: run returned a Promise"),
        ("function run() { return (async () => 1)(); }", "run: TypeError: run returned a Promise"),
        ("var x = 1;", "index.js defines no top-level run(input) function"),
        ("var run = 5;", "index.js defines no top-level run(input) function"),
        ("{ let run = () => 1; }", "index.js defines no top-level run(input) function"),
        ("class run {}", "run: TypeError: "),
        ("function run() {\n\n  missing.x;\n}", "run: ReferenceError: missing is not defined "
         "(index.js:3:3)"),
        ("function run() { throw 'text'; }", "run: text"),
        ("function run() { throw { code: 7 }; }", 'run: {"code":7}'),
        ("function run() { throw null; }", "run: null"),
        ("function run() { throw undefined; }", "run: undefined"),
        ("function run() { class Mine extends Error { name = 'Mine' } throw new Mine('m'); }",
         "run: Mine: m (index.js:1:"),
        ("function run() { return { get final_text() { throw Error('g'); } }; }", "run: Error: g"),
        ("function run() { const a = {}; a.a = a; return a; }", "run: TypeError: circular"),
        ("function run() { throw new SyntaxError('mine'); }", "run: SyntaxError: mine"),
        ("let a = 1;\nnull.x;", "evaluating index.js: TypeError: "),
        ("throw new SyntaxError('mine'); function run() {}",
         "evaluating index.js: SyntaxError: mine"),
    ],
)  # fmt: skip
def test_failures_of_the_program_are_threw_errors(source: str, expected: str) -> None:
    outcome = advance(source)
    assert isinstance(outcome, Failed)
    assert outcome.code == "code_agent_threw"
    assert outcome.message.startswith("code_agent_threw: " + expected)


def test_a_very_long_exception_is_cut() -> None:
    outcome = run("throw new Error('x'.repeat(1e6));")
    assert isinstance(outcome, Failed)
    assert len(outcome.message) < 10_000


@pytest.mark.parametrize(
    "source",
    [
        "const run = (input) => input.n + 1",
        "let run = function (input) { return input.n + 1; };",
        "'use strict'; function run({ n }) { return n + 1; }",
        "var run; run = (i) => i.n + 1 // no newline at the end",
        "globalThis.run = (i) => i.n + 1",
        "function run(i) { 'use strict'; return this === undefined ? i.n + 1 : 'this'; }",
    ],
)
def test_run_may_be_defined_in_any_way(source: str) -> None:
    assert advance(source, given={"n": 1}) == Finished("2")
