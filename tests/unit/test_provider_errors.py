"""The class of a failed call decides whether it is retried or falls back (providers.md 3)."""

import asyncio

import pytest

from loomcycle.providers.base import ProviderError
from loomcycle.providers.errors import ErrorClass, TransportFailure, classify, is_rate_limit

R, P, D = ErrorClass.RETRYABLE, ErrorClass.PERMANENT, ErrorClass.DEPRECATED


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("anthropic 429: slow down", R),
        ("openai 500: ", R),
        ("ollama-local 503: loading", R),
        ("anthropic 529: overloaded", R),
        ("mock 500: server_error (x)", R),
        ("openai 400: bad", P),
        ("gemini 401: bad key", P),
        ("openai 403: no", P),
        ("openai 422: no", P),
        ("openai 404: no such model", P),
        ("openai 410: gone", P),
        ("openai 404: The model has been DEPRECATED", D),
        ("anthropic 404: Model Retired on Monday", D),
        ("gemini 404: models/x is no longer available", D),
        ("gemini 404: the model is deprecated", D),
        ("gemini 404: please update your code to use y", D),
        ("openai 400: the model has been deprecated", P),
        ("http: connection refused", R),
        ("stream read: context deadline exceeded (no data for 90s)", R),
        ("openai 400: stream read: context deadline exceeded", R),
        ("context canceled", ErrorClass.CANCELLED),
        ("context deadline exceeded", ErrorClass.DEADLINE_EXCEEDED),
        ("openai 301: moved", ErrorClass.UNKNOWN),
        ("stream read: line longer than 1048576 bytes", ErrorClass.UNKNOWN),
        ("overloaded_error: Overloaded", ErrorClass.UNKNOWN),
        ("OpenAI 500: x", ErrorClass.UNKNOWN),
        ("openai 5000: x", ErrorClass.UNKNOWN),
        (" openai 500: x", ErrorClass.UNKNOWN),
        ("", ErrorClass.UNKNOWN),
    ],
)
def test_the_text_decides_the_class(text: str, expected: ErrorClass) -> None:
    assert classify(text) is expected
    assert classify(ProviderError(text)) is expected


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (asyncio.CancelledError(), ErrorClass.CANCELLED),
        (TimeoutError(), ErrorClass.DEADLINE_EXCEEDED),
        (ConnectionResetError("reset"), R),
        (TransportFailure("stream read: peer closed connection", partial=True), R),
        (ValueError("x"), ErrorClass.UNKNOWN),
    ],
)
def test_an_exception_says_more_than_its_text(error: BaseException, expected: ErrorClass) -> None:
    assert classify(error) is expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("openai 429: x", True),
        ("ollama-local 429: ", True),
        ("openai 400: upstream said 429: x", False),
        ("openai 503: 429", False),
        ("429: x", False),
    ],
)
def test_only_a_leading_429_is_a_rate_limit(text: str, expected: bool) -> None:
    assert is_rate_limit(text) is expected
    assert is_rate_limit(ProviderError(text)) is expected
