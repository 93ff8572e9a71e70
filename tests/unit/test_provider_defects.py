"""A driver that raises what it must not: one failed call, told without what the exception says."""

from __future__ import annotations

import logging
from collections.abc import AsyncGenerator

import pytest

from loomcycle.compaction_turn import summarise
from loomcycle.providers.base import (
    Capabilities,
    Delta,
    ProviderError,
    ProviderNotConfigured,
    RetryDelta,
    TextDelta,
)
from loomcycle.providers.defects import contained
from loomcycle.providers.errors import ErrorClass, classify
from loomcycle.providers.registry import Registry
from replay.conversation import ModelRequest

RETRY = RetryDelta("broken", 1, 0, "busy")
TEXT = TextDelta("half")


class Broken:
    """Yields ``deltas``, then raises; ``closed`` tells that its generator came to its end."""

    id = "broken"
    capabilities = Capabilities()

    def __init__(self, cause: BaseException, *deltas: Delta) -> None:
        self.closed = False
        self._cause, self._deltas = cause, deltas

    async def stream(self, request: ModelRequest) -> AsyncGenerator[Delta, None]:
        try:
            for delta in self._deltas:
                yield delta
            raise self._cause
        finally:
            self.closed = True

    async def models(self) -> list[str]:
        return []

    async def close(self) -> None:
        """Nothing is open."""


REQUEST = ModelRequest(provider="broken", model="m", messages=())


def calling(provider: Broken) -> AsyncGenerator[Delta, None]:
    return contained(provider, REQUEST)


@pytest.mark.parametrize(
    "cause",
    [
        ValueError("sk-secret"),
        RecursionError("sk-secret"),
        TimeoutError("sk-secret"),
        ConnectionError("http: sk-secret"),
        UnicodeDecodeError("utf-8", b"sk-secret", 0, 1, "sk-secret"),
    ],
    ids=lambda cause: type(cause).__name__,
)
@pytest.mark.parametrize(
    ("deltas", "partial"), [([], False), ([RETRY], False), ([RETRY, TEXT], True)]
)
async def test_a_defect_is_a_failure_of_no_class_that_is_repeated(
    caplog: pytest.LogCaptureFixture, cause: Exception, deltas: list[Delta], partial: bool
) -> None:
    calls = calling(Broken(cause, *deltas))
    assert [await anext(calls) for _ in deltas] == deltas
    with caplog.at_level(logging.ERROR), pytest.raises(ProviderError) as caught:
        await anext(calls)
    error = caught.value
    assert str(error) == f"broken: the driver failed ({type(cause).__name__})"
    assert classify(error) is classify(str(error)) is ErrorClass.UNKNOWN
    assert error.partial is partial
    (record,) = caplog.records
    assert f"the driver failed: {type(cause).__name__}" in record.getMessage()
    assert "in stream" in record.getMessage()
    assert "sk-secret" not in caplog.text


@pytest.mark.parametrize(
    "cause", [ProviderError("openai 503: busy", partial=True), ProviderNotConfigured("no key")]
)
async def test_what_a_driver_may_raise_passes(
    caplog: pytest.LogCaptureFixture, cause: Exception
) -> None:
    with pytest.raises(type(cause)) as caught:
        await anext(calling(Broken(cause)))
    assert caught.value is cause
    assert not caplog.records


async def test_closing_it_closes_the_driver() -> None:
    provider = Broken(ValueError(), TEXT)
    stream = calling(provider)
    assert await anext(stream) == TEXT
    await stream.aclose()
    assert provider.closed


async def test_a_summary_is_asked_for_in_the_same_way() -> None:
    registry = Registry({"broken": Broken(ValueError("sk-secret"))}, {})
    with pytest.raises(ProviderError, match=r"^broken: the driver failed \(ValueError\)$"):
        await summarise(registry, REQUEST)
