"""The mock provider's scripts, latency and failures (providers.md 7)."""

import json
import random
from collections.abc import Sequence
from typing import Any

import pytest
from msgspec import Raw

from events.plan import SystemBlock, ToolSpec
from loomcycle.providers.base import Delta, Done, ProviderError, TextDelta, ToolCallDelta
from loomcycle.providers.mock import MockProvider, MockSettings
from loomcycle.providers.mock_history import WORTH_REMEMBERING
from loomcycle.providers.mock_scripts import find_field, score_of
from replay.conversation import Message, ModelRequest, Text, ToolResult, ToolUse

AT_ONCE = MockSettings(latency_ms=0, jitter_ms=0)


class Sleeps:
    def __init__(self) -> None:
        self.seconds: list[float] = []

    async def __call__(self, seconds: float) -> None:
        self.seconds.append(seconds)


def mock(settings: MockSettings = AT_ONCE, sleep: Sleeps | None = None) -> MockProvider:
    return MockProvider("mock", settings, rng=random.Random(1), sleep=sleep or Sleeps())


def said(text: str) -> Message:
    return Message("user", (Text(text),))


def tools(*names: str) -> tuple[ToolSpec, ...]:
    return tuple(ToolSpec(name, "", Raw(b"{}")) for name in names)


def request(model: str, messages: Sequence[Message] = (), **fields: Any) -> ModelRequest:
    return ModelRequest(provider="mock", model=model, messages=list(messages), **fields)


async def turn(provider: MockProvider, call: ModelRequest) -> list[Delta]:
    return [delta async for delta in provider.stream(call)]


async def play(
    model: str, prompt: str, results: Sequence[str] = (), offered: Sequence[str] = ()
) -> list[tuple[str, Any]]:
    """(tool, input) of each turn until the script ends; tool n is answered by ``results[n]``."""
    provider = mock()
    calls: list[tuple[str, Any]] = []
    messages = [said(prompt)]
    for step in range(50):
        deltas = await turn(provider, request(model, messages, tools=tools(*offered)))
        done = deltas[-1]
        assert isinstance(done, Done)
        if done.stop_reason == "end_turn":
            assert [type(delta) for delta in deltas] == [TextDelta, Done]
            return calls
        assert done.stop_reason == "tool_use"
        text, call = deltas[0], deltas[1]
        assert isinstance(text, TextDelta)
        assert isinstance(call, ToolCallDelta)
        assert len(deltas) == 3
        calls.append((call.name, json.loads(bytes(call.input))))
        answer = results[step] if step < len(results) else "{}"
        messages.append(Message("assistant", (Text(text.text), _use(call))))
        messages.append(Message("user", (ToolResult(call.id, call.name, answer),)))
    raise AssertionError("the script does not end")


def _use(call: ToolCallDelta) -> ToolUse:
    return ToolUse(call.id, call.name, call.input)


async def test_researcher() -> None:
    finding = {"text": "Mock research for c7: a brief factual answer."}
    assert await play("mock-researcher", "work on c7 not c8") == [
        ("Memory", {"op": "set", "scope": "user", "key": "c7-research", "value": finding}),
        (
            "Channel",
            {"op": "publish", "channel": "research-done/c7", "value": {"circuit_id": "c7"}},
        ),
    ]


@pytest.mark.parametrize(
    ("own_answer", "run_id"),
    [('{"run_id":"r_42"}', "r_42"), ("no json", "mock-editor-c1")],
)
async def test_editor(own_answer: str, run_id: str) -> None:
    calls = await play("mock-editor", "c1", ["{}", "{}", "{}", own_answer])
    assert calls == [
        (
            "Channel",
            {
                "op": "subscribe",
                "channel": "research-done/c1",
                "wait_ms": 120000,
                "max_messages": 1,
            },
        ),
        ("Memory", {"op": "get", "scope": "user", "key": "c1-research"}),
        (
            "Memory",
            {
                "op": "set",
                "scope": "user",
                "key": "c1-research-edited",
                "value": {"text": "Mock edit c1: tightened."},
            },
        ),
        ("Context", {"op": "self"}),
        (
            "Channel",
            {
                "op": "publish",
                "channel": "editing-done/c1",
                "value": {"circuit_id": "c1", "editor_run_id": run_id},
            },
        ),
    ]


async def test_evaluator() -> None:
    message = {"messages": [{"id": "m", "value": {"circuit_id": "c1", "editor_run_id": "r_9"}}]}
    calls = await play("mock-evaluator", "c1", [json.dumps(message)])
    score = score_of("r_9", "c1")
    assert [name for name, _ in calls] == ["Channel", "Memory", "Memory", "Memory", "Evaluation"]
    assert calls[3][1]["value"] == {"score": score, "rationale": "ok"}
    assert calls[4][1] == {"op": "submit", "run_id": "r_9", "score": score, "rationale": "ok"}


async def test_evaluator_without_an_editor_submits_an_empty_run() -> None:
    calls = await play("mock-evaluator", "c1")
    assert calls[4][1]["run_id"] == ""


@pytest.mark.parametrize(
    ("offered", "called"),
    [
        (["Read", "mcp__b__y", "mcp__a__x", "mcp__c__z"], ["mcp__b__y", "mcp__a__x"]),
        (["mcp__a__x"], ["mcp__a__x"]),
        (["Read"], []),
    ],
)
async def test_mcp_caller_uses_the_first_two_mcp_tools(
    offered: list[str], called: list[str]
) -> None:
    calls = await play("mock-mcp-caller", "user_id=ann_1 user_id=bob", offered=offered)
    assert calls == [(name, {"user_id": "ann_1"}) for name in called]


async def test_mcp_caller_takes_the_newest_user_text_that_names_a_user() -> None:
    talk = [said("user_id=old"), said("user_id=new."), said("no id")]
    deltas = await turn(mock(), request("mock-mcp-caller", talk, tools=tools("mcp__a")))
    call = deltas[1]
    assert isinstance(call, ToolCallDelta)
    assert json.loads(bytes(call.input)) == {"user_id": "new"}


async def test_memory_searcher() -> None:
    dedup = {"enabled": True, "mode": "drop", "threshold": 0.9}
    query = "loomcycle high-load agentic runtime in go"
    expected = {"op": "search", "scope": "user", "query": query, "top_k": 10, "dedup": dedup}
    assert await play("mock-mem-search", "x") == [("Memory", expected)]


@pytest.mark.parametrize(
    ("offered", "call"),
    [
        (["Context", "Memory"], ("Memory", {"op": "incr", "scope": "user", "key": "c3-steps"})),
        (["Context"], ("Context", {"op": "time"})),
    ],
)
async def test_mock_steps_makes_that_many_calls(offered: list[str], call: tuple[str, Any]) -> None:
    assert await play("mock-steps-20", "on c3", offered=offered) == [call] * 20


async def test_mock_steps_without_a_tool_to_call_just_answers() -> None:
    assert await play("mock-steps-3", "x", offered=["Read"]) == []


@pytest.mark.parametrize("model", ["mock-generic", "anything", "mock-steps-x"])
async def test_other_models_answer_ok(model: str) -> None:
    deltas = await turn(mock(), request(model, [said("hi")]))
    assert deltas[0] == TextDelta("ok")
    assert isinstance(deltas[1], Done)
    assert deltas[1].stop_reason == "end_turn"


async def test_after_its_last_step_a_script_says_done() -> None:
    results = tuple(ToolResult("t", "Memory", "{}") for _ in range(2))
    deltas = await turn(mock(), request("mock-researcher", [said("c1"), Message("user", results)]))
    assert deltas[0] == TextDelta("done")


async def test_the_circuit_is_the_oldest_match_or_c0() -> None:
    async def circuit(*texts: str) -> str:
        deltas = await turn(mock(), request("mock-researcher", [said(text) for text in texts]))
        assert isinstance(deltas[1], ToolCallDelta)
        return str(json.loads(bytes(deltas[1].input))["key"]).removesuffix("-research")

    assert await circuit("abc12 C5 c٣", "c9 c8") == "c9"
    assert await circuit("nothing") == "c0"


async def test_usage_counts_bytes_of_the_request_and_of_the_answer() -> None:
    talk = [
        said("é" * 10),
        Message("assistant", (Text("x" * 8), ToolUse("t", "A", Raw(b'{"a":1}'))), reasoning="r"),
        Message("user", (ToolResult("t", "A", "y" * 4),)),
    ]
    system = (SystemBlock("s" * 100),)
    deltas = await turn(mock(), request("mock-researcher", talk, system=system))
    text, call, done = deltas
    assert isinstance(text, TextDelta)
    assert isinstance(call, ToolCallDelta)
    assert isinstance(done, Done)
    assert done.usage is not None
    assert done.usage.input_tokens == (100 + 20 + 8 + 7 + 1 + 4) // 4
    assert done.usage.output_tokens == len(text.text) // 4 + len(bytes(call.input)) // 4
    assert done.usage.model == "mock-researcher"


async def test_an_empty_request_counts_one_token() -> None:
    deltas = await turn(mock(), request("mock-generic"))
    assert isinstance(deltas[-1], Done)
    assert deltas[-1].usage is not None
    assert deltas[-1].usage.input_tokens == 1


async def test_a_long_conversation_is_counted_the_same_however_it_grew() -> None:
    grown, talk = mock(), [said("c1")]
    for index in range(WORTH_REMEMBERING):
        talk.append(Message("assistant", (Text("x" * index),)))
        talk.append(Message("user", (ToolResult("t", "A", "y" * index), Text("z"))))
        call = request("mock-steps-999", talk, tools=tools("Memory"))
        assert _comparable(await turn(grown, call)) == _comparable(await turn(mock(), call))
    changed = [talk[0], *talk[3:]]
    call = request("mock-steps-999", changed, tools=tools("Memory"))
    assert _comparable(await turn(grown, call)) == _comparable(await turn(mock(), call))


def _comparable(deltas: list[Delta]) -> list[Delta]:
    return [delta for delta in deltas if not isinstance(delta, ToolCallDelta)]


async def test_tool_ids_are_random_hex() -> None:
    provider = mock()
    ids = set()
    for _ in range(5):
        deltas = await turn(provider, request("mock-researcher"))
        assert isinstance(deltas[1], ToolCallDelta)
        assert deltas[1].id.startswith("mock_tu_")
        assert len(bytes.fromhex(deltas[1].id.removeprefix("mock_tu_"))) == 8
        ids.add(deltas[1].id)
    assert len(ids) == 5


async def test_without_latency_and_jitter_it_never_sleeps() -> None:
    sleeps = Sleeps()
    await turn(mock(AT_ONCE, sleeps), request("mock-generic", [said("x" * 10_000)]))
    assert sleeps.seconds == []


async def test_latency_is_base_plus_jitter_plus_size() -> None:
    sleeps = Sleeps()
    provider = mock(MockSettings(latency_ms=50, jitter_ms=0), sleeps)
    await turn(provider, request("mock-generic", [said("x" * 100_000)]))
    assert sleeps.seconds == [pytest.approx(0.051)]
    provider = mock(MockSettings(latency_ms=0, jitter_ms=25), sleeps)
    for _ in range(100):
        await turn(provider, request("mock-generic"))
    assert all(0 <= seconds < 0.025 for seconds in sleeps.seconds[1:])
    assert len(set(sleeps.seconds[1:])) > 50


async def test_failures_are_drawn_before_any_latency_and_a_429_wins() -> None:
    sleeps = Sleeps()
    both = MockSettings(latency_ms=50, jitter_ms=25, rate_429=1.0, rate_500=1.0)
    with pytest.raises(ProviderError, match=r"^mock 429: rate_limited \("):
        await turn(mock(both, sleeps), request("mock-generic"))
    with pytest.raises(ProviderError, match=r"^mock 500: server_error \("):
        await turn(mock(MockSettings(rate_500=1.0), sleeps), request("mock-generic"))
    assert sleeps.seconds == []


async def test_failure_rates_are_probabilities() -> None:
    provider, failed = mock(MockSettings(latency_ms=0, jitter_ms=0, rate_429=0.3)), 0
    for _ in range(1000):
        try:
            await turn(provider, request("mock-generic"))
        except ProviderError:
            failed += 1
    assert 230 < failed < 370


async def test_listed_models() -> None:
    assert await mock().models() == [
        "mock-researcher",
        "mock-editor",
        "mock-evaluator",
        "mock-generic",
        "mock-mcp-caller",
    ]


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ('{"run_id":"a"}', "a"),
        ('{"messages":[{"x":1},{"run_id":"a"}]}', "a"),
        ('{"messages":[{"value":{"run_id":"a"}}]}', "a"),
        ('{"messages":[{"value":"{\\"run_id\\":\\"a\\"}"}]}', "a"),
        ('prose "run_id": "a" prose', "a"),
        ('{"run_id":""}', ""),
        ('{"messages":"x"}', ""),
        ("[" * 100_000, ""),
    ],
)
def test_a_run_id_is_found_wherever_results_carry_it(text: str, found: str) -> None:
    assert find_field(text, "run_id") == found


def test_scores_are_deterministic_and_in_range() -> None:
    scores = {score_of(f"r_{n}", "c1") for n in range(500)}
    assert min(scores) >= 0.50
    assert max(scores) <= 0.99
    assert len(scores) > 40
    assert score_of("", "") == 0.5 + (0x811C9DC5 % 50) / 100
    assert score_of("a", "") == pytest.approx(0.5 + (0xE40C292C % 50) / 100)
