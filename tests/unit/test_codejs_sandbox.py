"""What a program can reach, how long it can run, and what it can break: nothing."""

import os
import threading
import time

import pytest

from replay.codejs import Call, Failed, Finished, Interpreter, Outcome, Program, ToolCall

MIB = 1 << 20


def advance(source: str, *recorded: Call, limit_s: float = 5.0, memory: int = 32 * MIB) -> Outcome:
    program = Program(source, "demo", ("Read", "Memory"), {"n": 1}, "s", 1_700_000_000_000, memory)
    return Interpreter(program).advance(recorded, time_limit_s=limit_s)


def evaluate(expression: str) -> str | None:
    outcome = advance(f"function run(input) {{ return {expression}; }}")
    assert isinstance(outcome, Finished), outcome
    return outcome.text


def failure(outcome: Outcome, code: str) -> str:
    assert isinstance(outcome, Failed), outcome
    assert outcome.code == code
    return outcome.message


@pytest.mark.parametrize(
    "name",
    [
        *("eval", "Function", "require", "module", "process", "console", "fetch", "setTimeout"),
        *("setInterval", "queueMicrotask", "performance", "Atomics", "SharedArrayBuffer"),
        *("WeakRef", "FinalizationRegistry", "std", "os", "print", "Worker", "WebFetch", "Agent"),
    ],
)
def test_nothing_but_the_language_and_the_tools_is_defined(name: str) -> None:
    assert evaluate(f"typeof {name} + (globalThis.{name} === undefined)") == "undefinedtrue"
    text = failure(advance(f"function run() {{ {name}('1'); }}"), "code_agent_threw")
    assert f"ReferenceError: {name} is not defined" in text


@pytest.mark.parametrize(
    "function",
    ["function () {}", "() => 1", "class {}", "function* () {}", "async () => {}",
     "async function* () {}", "Read", "Memory.get", "Date", "Object.keys"],
)  # fmt: skip
def test_no_constructor_makes_code_from_strings(function: str) -> None:
    for path in ("f.constructor", "Object.getPrototypeOf(f).constructor"):
        for call in (f"{path}('return 1')()", f"new ({path})('return 1')()"):
            text = evaluate(
                f"(() => {{ const f = {function}; try {{ return 'made' + {call} }} "
                "catch (e) { return e.message } })()"
            )
            assert text == "code cannot be made from strings here"


def test_blocked_constructors_cannot_be_put_back() -> None:
    assert evaluate(
        "(() => { const p = Object.getPrototypeOf(() => 1); const was = p.constructor;"
        " p.constructor = 1; return p.constructor === was && Reflect.deleteProperty(p, "
        "'constructor') })()"
    ) == "false"  # fmt: skip


@pytest.mark.parametrize(
    "escape",
    [
        "import('fs'), 'nothing'",
        "(Error.prepareStackTrace = (e, s) => { globalThis.s = s }, new Error().stack, typeof s)",
        "(() => { try { return typeof arguments.callee.caller } catch (e) { return 'no' } })()",
        "(() => { try { return Read.caller } catch (e) { return 'no' } })()",
    ],
)
def test_frames_and_modules_cannot_be_reached(escape: str) -> None:
    assert evaluate(escape) in ("nothing", "undefined", "no")


def test_a_program_that_replaces_every_built_in_changes_nothing_for_its_host() -> None:
    outcome = advance("""
      const evil = () => { throw new Error("hijacked"); };
      const root = Object.prototype;
      const targets = [Object, Array, JSON, Reflect, String, Number, Promise, Object.prototype,
                       Array.prototype, String.prototype, RegExp.prototype, Date.prototype,
                       Object.getPrototypeOf(() => 1), Error, Error.prototype, globalThis];
      const all = targets.map((o) => Object.getOwnPropertyNames(o));
      for (let i = 0; i < all.length; i++) {
        for (let k = 0; k < all[i].length; k++) {
          const name = all[i][k];
          if (name === "prototype" || name === "Memory" || name === "run") continue;
          try { targets[i][name] = evil; } catch (e) {}
        }
      }
      root.get = root.set = root.toJSON = evil;
      function run() { Memory.get({key: ["k", {x: 1}]}); }
    """)
    assert outcome == ToolCall(0, "Memory", b'{"key":["k",{"x":1}],"op":"get"}')


def test_inherited_to_json_does_not_touch_what_the_host_reads() -> None:
    source = """
      for (const proto of [Object.prototype, Array.prototype, String.prototype])
        proto.toJSON = () => "hijacked";
      function run() { return "own text"; }
    """
    assert advance(source) == Finished("own text")


@pytest.mark.parametrize(
    "source",
    [
        "function run() { for (;;); }",
        "for (;;); function run() {}",
        "function run() { for (;;) { try { for (;;); } catch (e) {} finally { continue; } } }",
        "function run() { Memory.get({ get key() { for (;;); } }); }",
        "function run() { Memory.get(new Proxy({}, { ownKeys() { for (;;); } })); }",
        "function run() { Memory.get(new Proxy({}, { getPrototypeOf() { for (;;); } })); }",
        "function run() { return { toJSON() { for (;;); } }; }",
        "function run() { return { get final_text() { for (;;); } }; }",
        "function run() { return { final_text: { toString() { for (;;); } } }; }",
        "function run() { /^(a+)+$/.test('a'.repeat(40) + 'b'); }",
        "function run() { const a = [...Array(9999).keys()]; for (;;) a.map(x => x); }",
        "function run() { [1, 2].sort(() => { for (;;); }); }",
        "function run() { const p = new Promise(() => { for (;;); }); }",
        """Error.prototype.toString = () => { for (;;); };
           Object.prototype[Symbol.toPrimitive] = () => { for (;;); };
           Object.defineProperty(Error.prototype, "stack", { get() { for (;;); } });
           try { InternalError.prototype[Symbol.toPrimitive] = () => { for (;;); }; } catch (e) {}
           function run() { for (;;); }""",
    ],
)
def test_an_endless_program_ends_as_a_timeout(source: str) -> None:
    text = failure(advance(source, limit_s=0.1), "code_agent_timeout")
    assert "2m0s" in text
    assert "index.js" not in text


@pytest.mark.parametrize("time_limit_s", [0, -1, -0.0])
def test_no_javascript_runs_when_nothing_is_left_of_the_budget(time_limit_s: float) -> None:
    outcome = advance("function run() { return 1; }", limit_s=time_limit_s)
    failure(outcome, "code_agent_timeout")


def test_an_exception_whose_text_never_ends_is_still_reported() -> None:
    source = "function run() { throw { toString() { for (;;); } }; }"
    text = failure(advance(source), "code_agent_threw")
    assert "an exception that cannot be converted to text" in text


FILL = """var kept = null;
function fill() {
  for (let size = 1 << 21; size >= 1; size >>= 1)
    for (;;) { try { kept = { kept, text: "x".repeat(size) }; } catch (e) { break; } }
  for (let i = 0; i < 100; i++) { try { kept = { kept }; } catch (e) { break; } }
}
"""


def test_a_time_limit_holds_in_a_program_without_memory_that_catches_everything() -> None:
    source = FILL + "function run() { fill(); for (;;) { try { for (;;); } catch (e) {} } }"
    failure(advance(source, limit_s=0.1, memory=4 * MIB), "code_agent_timeout")


@pytest.mark.parametrize(
    "body",
    [
        "const a = []; for (;;) a.push({});",
        "let s = 'x'; for (;;) s += s + Math.random();",
        "new ArrayBuffer(1e9);",
        "Array(5e8).fill(0);",
        "return 'x'.repeat(6e7);",
        "Read({ path: 'x'.repeat(3e7) });",
        "fill(); Read({ path: 'x' });",
        "fill(); return [kept];",
        "fill(); throw kept;",
    ],
)
def test_a_program_without_memory_fails_and_takes_nobody_along(body: str) -> None:
    outcome = advance(f"{FILL}\nfunction run() {{ {body} }}", memory=16 * MIB)
    failure(outcome, "code_agent_threw")


@pytest.mark.parametrize(
    "body",
    [
        "const f = () => f() + 1; return f();",
        "return JSON.parse('['.repeat(1e5));",
        "let p = {}; for (let i = 0; i < 1e5; i++) p = new Proxy(p, {}); return p.x;",
        "let a = []; for (let i = 0; i < 1e5; i++) a = [a]; return String(a);",
        "return new RegExp('('.repeat(1e5));",
        "const f = async () => { await f(); }; f(); return (function g() { return g(); })();",
    ],
)
def test_endless_recursion_is_an_exception(body: str) -> None:
    text = failure(advance(f"function run() {{ {body} }}"), "code_agent_threw")
    assert "stack" in text or "out of memory" in text or "SyntaxError" in text


def test_recorded_results_do_not_count_as_the_programs_memory() -> None:
    source = """function run() {
      let n = 0;
      for (let i = 0; i < 40; i++) n += Read({path: "" + i}).length;
      return n;
    }"""
    recorded = [Call("Read", b'{"path":"%d"}' % i, "x" * 250_000) for i in range(40)]
    assert advance(source, *recorded, memory=2 * MIB) == Finished("10000000")


def test_a_call_from_any_thread_runs_and_no_thread_stays() -> None:
    source = "function run() { return Read(); }"
    advance(source)
    before = threading.active_count()
    outcomes: list[Outcome] = []
    threads = [threading.Thread(target=lambda: outcomes.append(advance(source))) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert outcomes == [ToolCall(0, "Read", b"{}")] * 8
    assert threading.active_count() == before


def test_an_endless_program_does_not_stop_other_threads() -> None:
    program = Program("function run() { for (;;); }", "demo", (), {}, "s", 0)
    interpreter = Interpreter(program)
    runner = threading.Thread(target=lambda: interpreter.advance([], time_limit_s=0.2))
    runner.start()
    steps = 0
    while runner.is_alive():
        steps += 1
    assert steps > 1000


# Determinism


def test_random_numbers_are_the_same_on_each_replay_and_differ_between_runs() -> None:
    source = "function run() { return [1, 2, 3, 4].map(() => Math.random()); }"

    def draws(seed: str) -> list[float]:
        program = Program(source, "demo", (), {}, seed, 0)
        outcome = Interpreter(program).advance([], time_limit_s=5)
        assert isinstance(outcome, Finished)
        assert outcome.text is not None
        return [float(part) for part in outcome.text.strip("[]").split(",")]

    assert draws("a|x") == draws("a|x") != draws("b|x")
    assert all(0 <= number < 1 for number in draws("a|x"))
    assert len(set(draws("a|x"))) == 4


@pytest.mark.parametrize(
    ("expression", "expected"),
    [
        ("[Date.now(), Date.now(), +new Date(), Date.now()]",
         "[1700000000000,1700000000001,1700000000002,1700000000003]"),
        ("Date()", "Tue Nov 14 2023 22:13:20 GMT+0000 (UTC)"),
        ("new Date().constructor.now()", "1700000000001"),
        ("new (Object.getPrototypeOf(new Date()).constructor)().getTime()", "1700000000001"),
        ("new Date(Reflect.construct(Date, [])).getTime()", "1700000000000"),
        ("new (class extends Date {})().getTime()", "1700000000000"),
        ("new (class D extends Date {})(5) instanceof Date", "true"),
        ("[new Date(7).getTime(), Date.UTC(2020, 1), Date.parse('2020-02-01')]",
         "[7,1580515200000,1580515200000]"),
        ("new Date(2020, 1, 1, 10).toISOString()", "2020-02-01T10:00:00.000Z"),
        ("new Date('2020-07-01T10:00:00').toISOString()", "2020-07-01T10:00:00.000Z"),
        ("new Date('Jul 1 2020 10:00:00').toISOString()", "2020-07-01T10:00:00.000Z"),
        ("new Date('2020-07-01T10:00:00+02:00').toISOString()", "2020-07-01T08:00:00.000Z"),
        ("new Date('2020-07-01').toISOString()", "2020-07-01T00:00:00.000Z"),
        ("new Date(new Date(5)).getTime()", "5"),
        ("new Date({ valueOf: () => 6 }).getTime()", "6"),
        ("[new Date(0).getHours(), new Date(0).getTimezoneOffset(), new Date(0).getDay()]",
         "[0,0,4]"),
        ("(d => (d.setHours(5), d.toISOString()))(new Date(0))", "1970-01-01T05:00:00.000Z"),
        ("new Date(0).toLocaleString()", "1/1/1970, 12:00:00 AM"),
        ("new Date(0).toDateString() + '|' + new Date(0).toTimeString()",
         "Thu Jan 01 1970|00:00:00 GMT+0000 (UTC)"),
        ("String(new Date(NaN)) + isNaN(new Date(undefined))", "Invalid Datetrue"),
        ("JSON.stringify(new Date(0)) + typeof (new Date() - 0)",
         '"1970-01-01T00:00:00.000Z"number'),
        ("[Date.name, Date.length, typeof new Date().getYear]", '["Date",7,"function"]'),
    ],
)  # fmt: skip
@pytest.mark.parametrize("zone", ["UTC", "America/New_York", "Asia/Kolkata"])
def test_the_clock_is_the_runs_own_in_every_zone(
    monkeypatch: pytest.MonkeyPatch, zone: str, expression: str, expected: str
) -> None:
    previous = os.environ.get("TZ")
    monkeypatch.setenv("TZ", zone)
    time.tzset()
    try:
        assert evaluate(expression) == expected
    finally:
        monkeypatch.undo()
        assert os.environ.get("TZ") == previous
        time.tzset()


def test_a_program_may_use_the_name_date_for_itself() -> None:
    assert advance("var Date = { now: 5 }; function run() { return Date.now; }") == Finished("5")
    assert advance("function run() { return typeof Date; }") == Finished("function")
