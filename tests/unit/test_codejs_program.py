"""Bodies before they run: syntax, names, hashes, seeds; and how durations are written."""

import hashlib
import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from replay.codejs import (
    Failed,
    Interpreter,
    InvalidAgentName,
    Program,
    body_path,
    check,
    go_duration,
    load_failed,
    seed_of,
    timed_out,
)
from replay.codejs.program import fnv1a_32


@pytest.mark.parametrize(
    "source",
    [
        "function run() {}",
        "",
        "'use strict'; const run = () => 1;",
        "/* comment */ // another\n'use strict'; let run = () => `${1}`;",
        "class A { static #x = 1; static y = A.#x ?? 2; } const run = () => A.y;",
        "throw new Error('not run'); for (;;); function run() {}",
        "var o = 010; function run() {}",
        "Memory.get({}); function run() {}",
        "async function* f() { for await (const x of f()) yield x; }",
    ],
)
def test_a_body_that_parses_has_no_error_and_is_not_run(source: str) -> None:
    assert check(source) is None


@pytest.mark.parametrize(
    ("source", "position"),
    [
        ("function run() {", "1:"),
        ("function run() {}\nlet x = ;", "2:"),
        ("x y", "1:3"),
        ("'use strict'; var o = 010;", "1:"),
        ("let a; let a;", "1:"),
        ("return 1;", "1:"),
        ("import x from 'y';", "1:"),
        ("export const run = 1;", "1:"),
        ("await 1;", "1:"),
        ("}); evil(); (() => {", "1:1"),
        ("if (true)", "1:"),
    ],
)
def test_a_syntax_error_is_told_with_its_position(source: str, position: str) -> None:
    problem = check(source)
    assert problem is not None
    assert problem.startswith("SyntaxError: ")
    assert f"(index.js:{position}" in problem


@pytest.mark.parametrize("source", ["var a = '\0';", "var a = '\ud800';"])
def test_a_body_must_be_text(source: str) -> None:
    assert check(source) is not None


def test_deep_nesting_is_a_syntax_problem_and_not_a_crash() -> None:
    assert check("(" * 200_000) is not None
    assert check("[" * 200_000 + "]" * 200_000) is not None


def test_a_body_that_does_not_parse_is_a_load_error_of_the_run() -> None:
    program = Program("function run() {\n  let x = ;\n}", "demo", (), {}, "s", 0)
    outcome = Interpreter(program).advance([], time_limit_s=5)
    assert isinstance(outcome, Failed)
    assert outcome.code == "code_agent_load"
    assert outcome.message.startswith('code_agent_load: code-agent "demo": parse: SyntaxError: ')
    assert "(index.js:2:" in outcome.message


@pytest.mark.parametrize("name", ["demo", "a.b", "...", "with space", "ünï", "-x"])
def test_a_body_lies_in_the_folder_of_its_agent(name: str) -> None:
    assert body_path("/srv/code", name) == f"/srv/code/{name}/index.js"
    assert body_path("agent_code/", name) == f"agent_code/{name}/index.js"


@pytest.mark.parametrize(
    "name", ["", ".", "..", "a/b", "/etc", "../x", "a\\b", "..\\x", "a\0b", "/"]
)
def test_a_name_that_is_no_path_segment_is_refused(name: str) -> None:
    with pytest.raises(InvalidAgentName, match="invalid agent name"):
        body_path("/srv/code", name)


@given(st.text(max_size=20))
def test_no_name_leads_out_of_the_root(name: str) -> None:
    try:
        path = body_path("/srv/code", name)
    except InvalidAgentName:
        return
    assert os.path.dirname(os.path.dirname(os.path.normpath(path))) == "/srv/code"
    assert Path(path).parent.name == name


def test_load_errors_name_the_agent() -> None:
    failed = load_failed("demo", "no index.js at /srv/code/demo/index.js")
    assert failed.message == (
        'code_agent_load: code-agent "demo": no index.js at /srv/code/demo/index.js'
    )


def test_the_code_hash_is_the_sha_256_of_the_source() -> None:
    source = "function run() { return 'é'; }"
    program = Program(source, "demo", (), {}, "s", 0)
    assert program.code_hash == hashlib.sha256(source.encode()).hexdigest()


@pytest.mark.parametrize(
    ("text", "value"), [("", 0x811C9DC5), ("a", 0xE40C292C), ("foobar", 0xBF9CF968)]
)
def test_fnv1a_matches_its_published_vectors(text: str, value: int) -> None:
    assert fnv1a_32(text) == value


def test_the_seed_names_the_agent_id_and_the_agent() -> None:
    assert seed_of("a_1", "demo") == "a_1|demo"


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0, "0s"), (1, "1s"), (1.5, "1.5s"), (59.999, "59.999s"), (60, "1m0s"), (120, "2m0s"),
        (90.25, "1m30.25s"), (3600, "1h0m0s"), (5025, "1h23m45s"), (360_000, "100h0m0s"),
        (0.25, "250ms"), (0.0015, "1.5ms"), (0.000002, "2µs"), (5e-9, "5ns"), (1e-12, "0s"),
        (-90, "-1m30s"), (-0.5, "-500ms"),
    ],
)  # fmt: skip
def test_durations_are_written_as_go_writes_them(seconds: float, text: str) -> None:
    assert go_duration(seconds) == text


def test_a_timeout_names_the_budget_and_how_to_raise_it() -> None:
    message = timed_out(90).message
    assert message.startswith("code_agent_timeout: ")
    assert "1m30s" in message
    assert "run_timeout_seconds" in message
    assert "LOOMCYCLE_CODE_AGENTS_RUN_TIMEOUT_SECONDS" in message


def test_the_budget_in_the_message_is_the_programs() -> None:
    program = Program("function run() {}", "demo", (), {}, "s", 0, budget_s=45)
    outcome = Interpreter(program).advance([], time_limit_s=0)
    assert outcome == timed_out(45)
