"""What the scripted models of the mock provider do, step by step (providers.md section 7).

Pure functions of the request: a script's step is the number of tool results so far. The inputs
are a contract of load tests; the narration is ours.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from functools import cached_property
from typing import Any, NamedTuple

import msgspec

from loomcycle.providers.mock_history import History
from replay.conversation import ModelRequest, ToolResult

SUBSCRIBE_WAIT_MS = 120_000

_CIRCUIT = re.compile(r"\bc\d+\b", re.ASCII)
_USER_ID = re.compile(r"user_id=([A-Za-z0-9_-]+)")
_STEPS = re.compile(r"mock-steps-(\d{1,6})")


class Step(NamedTuple):
    """One turn: a text, and a tool call unless ``tool`` is ""."""

    text: str
    tool: str = ""
    input: dict[str, Any] = {}


class Scene:
    """What a script may look at."""

    def __init__(self, request: ModelRequest, history: History) -> None:
        self.request = request
        self.step = history.results
        self._user_texts = history.user_texts

    @cached_property
    def circuit(self) -> str:
        matches = (_CIRCUIT.search(text) for text in self._user_texts)
        return next((match[0] for match in matches if match), "c0")

    @cached_property
    def user_id(self) -> str:
        matches = (_USER_ID.search(text) for text in reversed(self._user_texts))
        return next((match[1] for match in matches if match), "")

    def newest(self, field: str) -> str:
        """``field`` of the newest tool result that has it, "" if none has."""
        for message in reversed(self.request.messages):
            for block in reversed(message.blocks):
                if isinstance(block, ToolResult) and (found := find_field(block.text, field)):
                    return found
        return ""


Script = Callable[[Scene], Step | None]


def script_for(model: str) -> Script | None:
    """The script of a model; None for models that just answer."""
    if model in SCRIPTS:
        return SCRIPTS[model]
    match = _STEPS.fullmatch(model)
    return _counting(int(match[1])) if match else None


def find_field(text: str, field: str) -> str:
    """A string field of a result: top level, ``messages[]``, ``messages[].value``, else by text."""
    try:
        document = msgspec.json.decode(text)
    except (msgspec.DecodeError, RecursionError):
        document = None
    for candidate in _candidates(document):
        value = candidate.get(field)
        if isinstance(value, str) and value:
            return value
    match = re.search(rf'"{field}"\s*:\s*"([^"]+)"', text)
    return match[1] if match else ""


def _candidates(document: Any) -> Iterator[dict[str, Any]]:
    if not isinstance(document, dict):
        return
    yield document
    messages = document.get("messages")
    for message in messages if isinstance(messages, list) else ():
        if not isinstance(message, dict):
            continue
        yield message
        value = message.get("value")
        if isinstance(value, str):
            try:
                value = msgspec.json.decode(value)
            except (msgspec.DecodeError, RecursionError):
                continue
        if isinstance(value, dict):
            yield value


def score_of(editor_run_id: str, circuit: str) -> float:
    """0.50 to 0.99, the same for the same run and circuit."""
    digest = 0x811C9DC5
    for byte in (editor_run_id + circuit).encode():
        digest = ((digest ^ byte) * 0x01000193) & 0xFFFFFFFF
    return round(0.50 + (digest % 50) / 100, 2)


def _remember(key: str, value: dict[str, Any]) -> dict[str, Any]:
    return {"op": "set", "scope": "user", "key": key, "value": value}


def _recall(key: str) -> dict[str, Any]:
    return {"op": "get", "scope": "user", "key": key}


def _publish(channel: str, value: dict[str, Any]) -> dict[str, Any]:
    return {"op": "publish", "channel": channel, "value": value}


def _await_one(channel: str) -> dict[str, Any]:
    return {
        "op": "subscribe",
        "channel": channel,
        "wait_ms": SUBSCRIBE_WAIT_MS,
        "max_messages": 1,
    }


def _researcher(scene: Scene) -> Step | None:
    c = scene.circuit
    match scene.step:
        case 0:
            finding = {"text": f"Mock research for {c}: a brief factual answer."}
            return Step("Noting the finding.", "Memory", _remember(f"{c}-research", finding))
        case 1:
            note = _publish(f"research-done/{c}", {"circuit_id": c})
            return Step("Telling the editor.", "Channel", note)
    return None


def _editor(scene: Scene) -> Step | None:
    c = scene.circuit
    match scene.step:
        case 0:
            return Step("Waiting for research.", "Channel", _await_one(f"research-done/{c}"))
        case 1:
            return Step("Reading the research.", "Memory", _recall(f"{c}-research"))
        case 2:
            edited = _remember(f"{c}-research-edited", {"text": f"Mock edit {c}: tightened."})
            return Step("Keeping the edited text.", "Memory", edited)
        case 3:
            return Step("Looking up this run.", "Context", {"op": "self"})
        case 4:
            run_id = scene.newest("run_id") or f"mock-editor-{c}"
            note = _publish(f"editing-done/{c}", {"circuit_id": c, "editor_run_id": run_id})
            return Step("Telling the evaluator.", "Channel", note)
    return None


def _evaluator(scene: Scene) -> Step | None:
    c = scene.circuit
    match scene.step:
        case 0:
            return Step("Waiting for the edit.", "Channel", _await_one(f"editing-done/{c}"))
        case 1:
            return Step("Reading the research.", "Memory", _recall(f"{c}-research"))
        case 2:
            return Step("Reading the edit.", "Memory", _recall(f"{c}-research-edited"))
    editor = scene.newest("editor_run_id")
    verdict = {"score": score_of(editor, c), "rationale": "ok"}
    match scene.step:
        case 3:
            return Step("Keeping the score.", "Memory", _remember(f"{c}-research-scored", verdict))
        case 4:
            submission = {"op": "submit", "run_id": editor, **verdict}
            return Step("Submitting the score.", "Evaluation", submission)
    return None


def _mcp_caller(scene: Scene) -> Step | None:
    tools = [tool.name for tool in scene.request.tools if tool.name.startswith("mcp__")]
    if not tools:
        return Step("No MCP tool is offered.")
    if scene.step >= min(len(tools), 2):
        return None
    return Step("Calling an MCP tool.", tools[scene.step], {"user_id": scene.user_id})


def _memory_searcher(scene: Scene) -> Step | None:
    if scene.step > 0:
        return None
    query = {
        "op": "search",
        "scope": "user",
        "query": "loomcycle high-load agentic runtime in go",
        "top_k": 10,
        "dedup": {"enabled": True, "mode": "drop", "threshold": 0.9},
    }
    return Step("Searching memory.", "Memory", query)


def _counting(steps: int) -> Script:
    """``mock-steps-<N>``: N calls of Memory, or of Context where Memory is not offered."""

    def script(scene: Scene) -> Step | None:
        offered = {tool.name for tool in scene.request.tools}
        if scene.step >= steps:
            return None
        if "Memory" in offered:
            count = {"op": "incr", "scope": "user", "key": f"{scene.circuit}-steps"}
            return Step("Counting.", "Memory", count)
        if "Context" in offered:
            return Step("Reading the clock.", "Context", {"op": "time"})
        return Step("Neither Memory nor Context is offered.")

    return script


SCRIPTS: dict[str, Script] = {
    "mock-researcher": _researcher,
    "mock-editor": _editor,
    "mock-evaluator": _evaluator,
    "mock-mcp-caller": _mcp_caller,
    "mock-mem-search": _memory_searcher,
}
