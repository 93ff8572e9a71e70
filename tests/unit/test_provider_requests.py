"""Request bodies: parameters (providers.md 4) and conversations (providers.md 6) per vendor."""

import json
from collections.abc import Callable
from typing import Any

import pytest
from msgspec import Raw

from events.plan import Sampling, SystemBlock, ToolSpec
from loomcycle.providers import anthropic, deepseek, gemini, ollama, openai, reasoning
from replay.conversation import Message, ModelRequest, Text, ToolResult, ToolUse

HELLO = Message("user", (Text("hello"),))


def request(model: str = "m", **fields: Any) -> ModelRequest:
    return ModelRequest(provider="p", model=model, **{"messages": [HELLO], **fields})


def body(encode: Callable[[ModelRequest], bytes], model: str = "m", **fields: Any) -> Any:
    return json.loads(encode(request(model, **fields)))


def deepseek_body(request: ModelRequest) -> bytes:
    return openai.encode_request(request, deepseek.DEEPSEEK)


# Parameters

ALL = Sampling(
    temperature=0.0, top_p=0.5, top_k=7, frequency_penalty=0.0, presence_penalty=-1.0, seed=0,
    stop=("END",),
)  # fmt: skip


@pytest.mark.parametrize(
    ("encode", "where", "expected"),
    [
        (
            anthropic.encode_request,
            None,
            {"max_tokens": 99, "temperature": 0.0, "top_p": 0.5, "top_k": 7,
             "stop_sequences": ["END"]},
        ),
        (
            openai.encode_request,
            None,
            {"max_tokens": 99, "temperature": 0.0, "top_p": 0.5, "frequency_penalty": 0.0,
             "presence_penalty": -1.0, "seed": 0, "stop": ["END"]},
        ),
        (
            deepseek_body,
            None,
            {"max_tokens": 99, "temperature": 0.0, "top_p": 0.5, "frequency_penalty": 0.0,
             "presence_penalty": -1.0, "seed": 0, "stop": ["END"]},
        ),
        (
            gemini.encode_request,
            "generationConfig",
            {"maxOutputTokens": 99, "temperature": 0.0, "topP": 0.5, "topK": 7, "seed": 0,
             "stopSequences": ["END"]},
        ),
        (
            ollama.encode_request,
            "options",
            {"num_predict": 99, "temperature": 0.0, "top_p": 0.5, "top_k": 7, "seed": 0,
             "stop": ["END"]},
        ),
    ],
)  # fmt: skip
def test_every_sampling_parameter_is_mapped_or_dropped_and_zero_is_a_value(
    encode: Callable[[ModelRequest], bytes], where: str | None, expected: dict[str, Any]
) -> None:
    sent = body(encode, sampling=ALL, max_tokens=99)
    params = sent[where] if where else sent
    fixed = {"model", "messages", "stream", "stream_options"} if not where else set()
    assert {key: value for key, value in params.items() if key not in fixed} == expected


@pytest.mark.parametrize(
    ("encode", "expected"),
    [
        (anthropic.encode_request, {"model", "max_tokens", "messages", "stream"}),
        (openai.encode_request, {"model", "messages", "stream", "stream_options"}),
        (deepseek_body, {"model", "messages", "stream", "stream_options"}),
        (gemini.encode_request, {"contents"}),
        (ollama.encode_request, {"model", "messages", "stream"}),
    ],
)
def test_what_is_not_set_is_not_sent(
    encode: Callable[[ModelRequest], bytes], expected: set[str]
) -> None:
    assert set(body(encode)) == expected
    assert set(body(encode, sampling=Sampling(stop=()))) == expected


def test_anthropic_defaults_to_8192_tokens() -> None:
    assert body(anthropic.encode_request)["max_tokens"] == 8192


@pytest.mark.parametrize(
    ("model", "effort", "max_tokens", "budget"),
    [
        ("claude-sonnet-4", "high", 0, 7168),
        ("claude-sonnet-4", "high", 16000, 8192),
        ("claude-sonnet-4", "high", 8193, 8192),
        ("claude-sonnet-4", "medium", 0, 2048),
        ("claude-sonnet-4", "medium", 2048, 1024),
        ("claude-sonnet-4", "medium", 2047, None),
        ("claude-sonnet-4", "low", 0, None),
        ("claude-sonnet-4", "", 0, None),
        ("claude-sonnet-4", "extreme", 0, None),
        ("claude-HAIKU-4", "high", 0, None),
    ],
)
def test_anthropic_thinking_budget(
    model: str, effort: str, max_tokens: int, budget: int | None
) -> None:
    sent = body(anthropic.encode_request, model, effort=effort, max_tokens=max_tokens)
    expected = {"type": "enabled", "budget_tokens": budget} if budget else None
    assert sent.get("thinking") == expected


def test_anthropic_drops_temperature_and_top_p_beside_thinking() -> None:
    sent = body(anthropic.encode_request, effort="medium", sampling=ALL)
    assert "thinking" in sent
    assert not {"temperature", "top_p"} & set(sent)
    assert (sent["top_k"], sent["stop_sequences"]) == (7, ["END"])


@pytest.mark.parametrize(
    ("effort", "max_tokens", "budget"),
    [
        ("", 0, None),
        ("low", 0, 0),
        ("medium", 0, 2048),
        ("medium", 2049, 2048),
        ("medium", 2048, 1792),
        ("medium", 256, 0),
        ("medium", 100, 0),
        ("high", 0, 8192),
        ("high", 8193, 8192),
        ("high", 8192, 7168),
        ("high", 2048, 1024),
        ("high", 2047, 0),
        ("odd", 0, None),
    ],
)
def test_gemini_thinking_budget(effort: str, max_tokens: int, budget: int | None) -> None:
    sent = body(gemini.encode_request, effort=effort, max_tokens=max_tokens)
    config = sent.get("generationConfig", {}).get("thinkingConfig")
    assert config == (None if budget is None else {"thinkingBudget": budget})


@pytest.mark.parametrize("encode", [openai.encode_request, deepseek_body])
@pytest.mark.parametrize("effort", ["low", "medium", "high"])
def test_openai_sends_the_effort_verbatim(
    encode: Callable[[ModelRequest], bytes], effort: str
) -> None:
    assert body(encode, effort=effort)["reasoning_effort"] == effort


def test_ollama_drops_the_effort() -> None:
    assert body(ollama.encode_request, effort="high") == body(ollama.encode_request)


@pytest.mark.parametrize("model", ["o1", "o1-mini", "o3-pro", "o4-mini", "gpt-5", "gpt-5.1-codex"])
def test_openai_reasoning_models_take_max_completion_tokens(model: str) -> None:
    sent = body(openai.encode_request, model, max_tokens=5)
    assert sent["max_completion_tokens"] == 5
    assert "max_tokens" not in sent


@pytest.mark.parametrize("model", ["gpt-4o", "gpt-4.1", "o11y-model", "gpt-3.5", "omni"])
def test_other_openai_models_take_max_tokens(model: str) -> None:
    sent = body(openai.encode_request, model, max_tokens=5)
    assert sent["max_tokens"] == 5
    assert "max_completion_tokens" not in sent


def test_deepseek_always_takes_max_tokens() -> None:
    assert body(deepseek_body, "o3", max_tokens=5)["max_tokens"] == 5


def test_a_pinned_ollama_window_is_sent_on_every_call() -> None:
    sent = json.loads(ollama.encode_request(request(), 4096))
    assert sent["options"] == {"num_ctx": 4096}


# Tools

SPEC = '{ "oneOf": [{"properties":{"a":{"type":"string"}}}], "additionalProperties":false}'
TOOL = ToolSpec("Read", "Reads.", Raw(SPEC.encode()))


@pytest.mark.parametrize("encode", [openai.encode_request, deepseek_body, ollama.encode_request])
def test_openai_style_tools_carry_the_schema_verbatim(
    encode: Callable[[ModelRequest], bytes],
) -> None:
    raw = encode(request(tools=(TOOL,)))
    assert SPEC.encode() in raw
    function = {"name": "Read", "description": "Reads.", "parameters": json.loads(SPEC)}
    assert json.loads(raw)["tools"] == [{"type": "function", "function": function}]


def test_anthropic_tools_have_a_sanitised_root() -> None:
    assert body(anthropic.encode_request, tools=(TOOL,))["tools"] == [
        {
            "name": "Read",
            "description": "Reads.",
            "input_schema": {
                "additionalProperties": False,
                "properties": {"a": {"type": "string"}},
                "type": "object",
            },
        }
    ]


def test_gemini_tools_are_declarations_of_one_tool() -> None:
    other = ToolSpec("Stat", "Stats.", Raw(b'{"type":"object"}'))
    assert body(gemini.encode_request, tools=(TOOL, other))["tools"] == [
        {
            "functionDeclarations": [
                {
                    "name": "Read",
                    "description": "Reads.",
                    "parameters": {"properties": {"a": {"type": "string"}}},
                },
                {"name": "Stat", "description": "Stats.", "parameters": {"type": "object"}},
            ]
        }
    ]


# Conversations

SYSTEM = (SystemBlock("be brief", cacheable=True), SystemBlock(""), SystemBlock("be kind"))
CALLS = Message(
    "assistant",
    (
        Text("looking"),
        ToolUse("t1", "Read", Raw(b'{"path": "a"}')),
        ToolUse("t2", "Stat", Raw(b"{}")),
    ),
)
RESULTS = Message(
    "user",
    (
        ToolResult("t1", "Read", "content"),
        ToolResult("t2", "Stat", "", is_error=True),
        Text("go on", cacheable=True),
        Text("please"),
    ),
)
SILENT = Message("assistant", (Text(""),), reasoning="thought only")
TALK: dict[str, Any] = {"system": SYSTEM, "messages": (HELLO, CALLS, RESULTS, SILENT, HELLO)}


def test_anthropic_conversation() -> None:
    sent = body(anthropic.encode_request, **TALK)
    assert sent["system"] == [
        {"type": "text", "text": "be brief", "cache_control": {"type": "ephemeral"}},
        {"type": "text", "text": "be kind"},
    ]
    hello = {"role": "user", "content": [{"type": "text", "text": "hello"}]}
    assert sent["messages"] == [
        hello,
        {
            "role": "assistant",
            "content": [
                {"type": "text", "text": "looking"},
                {"type": "tool_use", "id": "t1", "name": "Read", "input": {"path": "a"}},
                {"type": "tool_use", "id": "t2", "name": "Stat", "input": {}},
            ],
        },
        {
            "role": "user",
            "content": [
                {"type": "tool_result", "tool_use_id": "t1", "content": "content"},
                {"type": "tool_result", "tool_use_id": "t2", "is_error": True},
                {"type": "text", "text": "go on"},
                {"type": "text", "text": "please"},
            ],
        },
        hello,
    ]


def test_openai_conversation() -> None:
    sent = body(openai.encode_request, **TALK)
    assert sent["messages"] == [
        {"role": "system", "content": "be brief\n\nbe kind"},
        {"role": "user", "content": "hello"},
        {
            "role": "assistant",
            "content": "looking",
            "tool_calls": [
                {
                    "id": "t1",
                    "type": "function",
                    "function": {"name": "Read", "arguments": '{"path": "a"}'},
                },
                {"id": "t2", "type": "function", "function": {"name": "Stat", "arguments": "{}"}},
            ],
        },
        {"role": "user", "content": "go on\nplease"},
        {"role": "tool", "tool_call_id": "t1", "content": "content"},
        {"role": "tool", "tool_call_id": "t2", "content": ""},
        {"role": "user", "content": "hello"},
    ]


def test_gemini_conversation() -> None:
    sent = body(gemini.encode_request, **TALK)
    assert sent["systemInstruction"] == {"parts": [{"text": "be brief"}, {"text": "be kind"}]}
    hello = {"role": "user", "parts": [{"text": "hello"}]}
    assert sent["contents"] == [
        hello,
        {
            "role": "model",
            "parts": [
                {"text": "looking"},
                {"functionCall": {"name": "Read", "args": {"path": "a"}}},
                {"functionCall": {"name": "Stat", "args": {}}},
            ],
        },
        {
            "role": "user",
            "parts": [
                {"functionResponse": {"name": "Read", "response": {"content": "content"}}},
                {"functionResponse": {"name": "Stat", "response": {"content": ""}}},
                {"text": "go on"},
                {"text": "please"},
            ],
        },
        hello,
    ]


def test_ollama_conversation() -> None:
    sent = body(ollama.encode_request, **TALK)
    assert sent["messages"] == [
        {"role": "system", "content": "be brief\n\nbe kind"},
        {"role": "user", "content": "hello"},
        {
            "role": "assistant",
            "content": "looking",
            "tool_calls": [
                {"function": {"name": "Read", "arguments": {"path": "a"}}},
                {"function": {"name": "Stat", "arguments": {}}},
            ],
        },
        {"role": "user", "content": "go on\nplease"},
        {"role": "tool", "content": "content"},
        {"role": "tool", "content": ""},
        {"role": "user", "content": "hello"},
    ]


def test_openai_leaves_content_out_of_a_turn_that_only_calls() -> None:
    message = Message("assistant", (ToolUse("t", "Read", Raw(b"{}")),))
    sent = body(openai.encode_request, messages=[HELLO, message])["messages"][1]
    assert set(sent) == {"role", "tool_calls"}


def test_at_most_four_cache_breakpoints_are_placed_and_the_last_ones_count() -> None:
    system = tuple(SystemBlock(f"b{n}", cacheable=True) for n in range(6))
    sent = body(anthropic.encode_request, system=system)["system"]
    assert ["cache_control" in block for block in sent] == [False, False, True, True, True, True]


@pytest.mark.parametrize("value", [b'"oops"', b"[1]", b"null"])
def test_arguments_that_are_no_object_are_wrapped_where_an_object_is_due(value: bytes) -> None:
    message = Message("assistant", (ToolUse("t", "Read", Raw(value)),))
    wrapped = {"invalid_arguments": json.loads(value)}
    talk: dict[str, Any] = {"messages": [HELLO, message]}
    sent = body(anthropic.encode_request, **talk)
    assert sent["messages"][1]["content"][0]["input"] == wrapped
    sent = body(gemini.encode_request, **talk)
    assert sent["contents"][1]["parts"][0]["functionCall"]["args"] == wrapped
    sent = body(ollama.encode_request, **talk)
    assert sent["messages"][1]["tool_calls"][0]["function"]["arguments"] == wrapped
    sent = body(openai.encode_request, **talk)
    assert sent["messages"][1]["tool_calls"][0]["function"]["arguments"] == value.decode()


# Reasoning

THINKING = [{"type": "thinking", "thinking": "hm", "signature": "sig"}]


def turn(stored: str) -> list[Message]:
    call = Message("assistant", (ToolUse("t", "Read", Raw(b"{}")),), reasoning=stored)
    return [HELLO, call, Message("user", (ToolResult("t", "Read", "x"),))]


def test_anthropic_replays_its_own_thinking_before_the_turns_other_blocks() -> None:
    messages = turn(reasoning.seal("anthropic", THINKING))
    sent = body(anthropic.encode_request, messages=messages, effort="high")
    assert [block["type"] for block in sent["messages"][1]["content"]] == ["thinking", "tool_use"]
    assert sent["messages"][1]["content"][0] == THINKING[0]
    assert "thinking" in sent


@pytest.mark.parametrize(
    "stored",
    [
        "",
        "plain text of another vendor",
        reasoning.seal("gemini", ["sig"]),
        reasoning.seal("anthropic", THINKING).replace("hm", "[masked]"),
    ],
)
def test_anthropic_sends_no_foreign_or_altered_reasoning_and_then_does_not_think(
    stored: str,
) -> None:
    sent = body(anthropic.encode_request, messages=turn(stored), effort="high")
    assert [block["type"] for block in sent["messages"][1]["content"]] == ["tool_use"]
    assert "thinking" not in sent


def test_anthropic_thinks_again_once_the_user_has_spoken() -> None:
    messages = [*turn(""), Message("assistant", (Text("done"),)), HELLO]
    assert "thinking" in body(anthropic.encode_request, messages=messages, effort="high")


@pytest.mark.parametrize("encode", [openai.encode_request, deepseek_body])
def test_openai_style_reasoning_is_echoed(encode: Callable[[ModelRequest], bytes]) -> None:
    sent = body(encode, messages=turn("because"))
    assert sent["messages"][1]["reasoning_content"] == "because"


@pytest.mark.parametrize("driver", ["anthropic", "gemini"])
def test_openai_never_gets_sealed_reasoning(driver: str) -> None:
    sent = body(deepseek_body, messages=turn(reasoning.seal(driver, THINKING)))
    assert "reasoning_content" not in sent["messages"][1]


def test_gemini_replays_the_signatures_of_its_calls() -> None:
    calls = (Text("x"), ToolUse("1", "A", Raw(b"{}")), ToolUse("2", "B", Raw(b"{}")))
    message = Message("assistant", calls, reasoning=reasoning.seal("gemini", ["s1", ""]))
    parts = body(gemini.encode_request, messages=[HELLO, message])["contents"][1]["parts"]
    assert [part.get("thoughtSignature") for part in parts] == [None, "s1", None]


@pytest.mark.parametrize(
    ("model", "sibling"),
    [
        ("deepseek-v4-pro", "deepseek-chat"),
        ("deepseek-v4-flash", "deepseek-chat"),
        ("DeepSeek-Reasoner", "deepseek-chat"),
        ("deepseek-r1", "deepseek-chat"),
        ("deepseek-chat", None),
        ("deepseek-coder", None),
    ],
)
def test_deepseek_thinking_models_downgrade_to_the_chat_model(
    model: str, sibling: str | None
) -> None:
    assert deepseek.downgrade(model) == sibling
    assert deepseek.is_thinking_class(model) is (sibling is not None)
