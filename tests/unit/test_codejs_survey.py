"""The survey demo: a whole program, played against the answers its tools give."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec

from replay.codejs import (
    Call,
    Finished,
    Interpreter,
    Program,
    ToolCall,
    body_path,
    check,
    run_input,
    seed_of,
)

ROOT = Path(__file__).parents[2] / "loomcycle" / "demo"
SOURCE = Path(body_path(str(ROOT), "survey")).read_text("utf-8")
TOOLS = ("Glob", "Grep", "Read", "Memory")

Answer = tuple[str, bool]
Tool = Callable[[dict[str, Any]], Answer]


def survey(tools: dict[str, Tool], prompt: str = "", visible: tuple[str, ...] = TOOLS) -> str:
    given = run_input(prompt, {}, user_id="u1", agent_name="survey")
    seed = seed_of("a_1", "survey")
    interpreter = Interpreter(Program(SOURCE, "survey", visible, given, seed, 1_700_000_000_000))
    recorded: list[Call] = []
    while True:
        outcome = interpreter.advance(recorded, time_limit_s=5)
        if not isinstance(outcome, ToolCall):
            assert isinstance(outcome, Finished), outcome
            assert outcome.text is not None
            return outcome.text
        text, is_error = tools[outcome.name](msgspec.json.decode(outcome.input_json))
        recorded.append(Call(outcome.name, outcome.input_json, text, is_error))


class Workspace:
    """A few files, answered for as the file tools answer."""

    def __init__(self) -> None:
        self.memory: dict[str, Any] = {}
        self.tools: dict[str, Tool] = {
            "Glob": self.glob, "Grep": self.grep, "Read": self.read, "Memory": self.remember,
        }  # fmt: skip

    def glob(self, given: dict[str, Any]) -> Answer:
        match given["pattern"]:
            case "[^.]*/**/*":
                paths = "".join(f"src/m{i}.py\n" for i in range(100))
                return paths + "\n[truncated at max_results=100; 138 total matches]\n", False
            case "[^.]*/**/*.py":
                return "src/m1.py\nsrc/m2.py\n", False
            case "*.md":
                return "README.md\n", False
            case "*":
                return "README.md\nMakefile\n", False
        return "no matches\n", False

    def grep(self, given: dict[str, Any]) -> Answer:
        if given["output_mode"] == "content":
            if given["pattern"] == r"needle\.":
                return "src/m1.py:3:a Needle. here\n", False
            return "no matches\n", False
        assert given["path"] == "src"
        if "TODO" in given["pattern"]:
            return "m2.py:1\nnode_modules/x.js:9\n", False
        return "m1.py:4\nm2.py:7\n", False

    def read(self, given: dict[str, Any]) -> Answer:
        if given["path"] == "README.md":
            return "# Title\n\nWhat it\nis for.\n\nMore.\n", False
        return "all:\n", False

    def remember(self, given: dict[str, Any]) -> Answer:
        assert given["scope"] == "user"
        if given["op"] == "set":
            self.memory[given["key"]] = given["value"]
            return '{"ok":true}', False
        value = self.memory.get(given["key"])
        return msgspec.json.encode({"value": value, "expires_at": None}).decode(), False


def test_the_demo_parses() -> None:
    assert check(SOURCE) is None


def test_the_report_tells_what_is_there() -> None:
    report = survey(Workspace().tools, "needle.")
    for line in (
        "140 files.",
        "- Python: 2 files",
        "- Markdown: 1 file",
        "- `README.md` (Title): What it is for.",
        "- `Makefile`: 2 lines",
        "11 definitions in 2 files.",
        "- `src/m2.py` 7",
        "1 marker:",
        "- src/m1.py:3:a Needle. here",
    ):
        assert line in report.split("\n"), report
    assert "node_modules" not in report
    assert "Could not look" not in report


def test_findings_are_kept_for_the_next_survey() -> None:
    workspace = Workspace()
    survey(workspace.tools)
    assert workspace.memory["survey/latest"]["files"] == 140
    workspace.memory["survey/latest"]["files"] = 138
    assert "140 files, 2 more than in the last survey." in survey(workspace.tools)


def test_a_survey_of_nothing_ends_well() -> None:
    tools: dict[str, Tool] = {name: lambda _: ("no matches\n", False) for name in ("Glob", "Grep")}
    tools["Memory"] = lambda _: ('{"value":null,"expires_at":null}', False)
    report = survey(tools, "words")
    assert "There is nothing to read here." in report
    assert "Not found." in report


def test_every_tool_may_fail() -> None:
    tools: dict[str, Tool] = {name: lambda _: ("not configured", True) for name in TOOLS}
    report = survey(tools, "words")
    assert report.startswith("# Survey\n")
    assert "- file list: not configured" in report
    assert "- memory: not configured" in report


def test_every_tool_may_be_missing() -> None:
    report = survey({}, "words", visible=())
    assert "- file list: Glob is not defined" in report
