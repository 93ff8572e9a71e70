"""What tokens cost: the ``prices`` table of the configuration, and bounds of calls to come.

Money is counted in whole millionths of a US dollar, rounded up, so that sums are exact.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from fnmatch import fnmatchcase

from msgspec import Struct

from events.budget import Amount
from events.vocabulary import UsageTotals
from loomcycle.config.schema import PriceConfig
from replay.conversation import Message, ModelRequest, Text, ToolResult, ToolUse

ASSUMED_OUTPUT_TOKENS = 8192
"""Reserved for the answer of a request that sets no ``max_tokens``."""

BYTES_PER_TOKEN = 3
"""Of input that was not sent yet; four is usual, and a reservation must not be too small."""

_PER_TOKEN = 1_000_000
"""A price per million tokens in dollars is one per token in millionths; kept a million times
finer, as a whole number."""


class Unpriced(Exception):
    """A limit in money, and a model without a price."""

    def __init__(self, provider: str, model: str) -> None:
        super().__init__(
            f"max_cost_usd is set, but {provider}/{model} has no price: add"
            f' "{provider}/{model}" (or "{model}") to prices in the configuration'
        )


class Rates(Struct, frozen=True):
    """Of one token, in 1e-12 US dollars."""

    fresh: int
    output: int
    cache_read: int
    cache_write: int

    @property
    def dearest_input(self) -> int:
        return max(self.fresh, self.cache_read, self.cache_write)


class Prices:
    """Prices by ``provider/model``, by model, or by a pattern (``gpt-*``) of either."""

    def __init__(self, table: Mapping[str, PriceConfig]) -> None:
        self._exact = {name: _rates(price) for name, price in table.items() if not _glob(name)}
        self._patterns = sorted(
            ((name, _rates(price)) for name, price in table.items() if _glob(name)),
            key=lambda row: (-len(row[0]), row[0]),
        )

    def of(self, provider: str, model: str) -> Rates | None:
        """Exact names win over patterns, longer patterns over shorter ones."""
        names = (f"{provider}/{model}", model)
        for name in names:
            if name in self._exact:
                return self._exact[name]
        for pattern, rates in self._patterns:
            if any(fnmatchcase(name, pattern) for name in names):
                return rates
        return None

    def spent(self, by_model: Mapping[tuple[str, str], UsageTotals], *, money: bool) -> Amount:
        """What usage comes to; without ``money`` only tokens count. Raises Unpriced."""
        cost = tokens = 0
        for (provider, model), usage in by_model.items():
            read, written = usage.cache_read_input_tokens, usage.cache_creation_input_tokens
            tokens += usage.input_tokens + usage.output_tokens + read + written
            if money:
                rates = self._known(provider, model)
                cost += usage.input_tokens * rates.fresh + usage.output_tokens * rates.output
                cost += read * rates.cache_read + written * rates.cache_write
        return Amount(_micros(cost), tokens)

    def bound(self, request: ModelRequest, *, money: bool) -> Amount:
        """What a call may come to at most, by what it sends and may answer. Raises Unpriced."""
        given = -(-request_bytes(request) // BYTES_PER_TOKEN)
        answer = request.max_tokens or ASSUMED_OUTPUT_TOKENS
        cost = 0
        if money:
            rates = self._known(request.provider, request.model)
            cost = given * rates.dearest_input + answer * rates.output
        return Amount(_micros(cost), given + answer)

    def _known(self, provider: str, model: str) -> Rates:
        rates = self.of(provider, model)
        if rates is None:
            raise Unpriced(provider, model)
        return rates


def request_bytes(request: ModelRequest) -> int:
    """Bytes of everything in ``request`` that a vendor counts as input."""
    size = sum(len(block.text.encode()) for block in request.system)
    for tool in request.tools:
        size += len(tool.name) + len(tool.description.encode()) + len(bytes(tool.input_schema))
    return size + _message_bytes(request.messages)


def _message_bytes(messages: Iterable[Message]) -> int:
    size = 0
    for message in messages:
        size += len(message.reasoning.encode())
        for block in message.blocks:
            match block:
                case Text(text) | ToolResult(_, _, text):
                    size += len(text.encode())
                case ToolUse(_, name, arguments):
                    size += len(name) + len(bytes(arguments))
    return size


def _glob(name: str) -> bool:
    return "*" in name or "?" in name


def _rates(price: PriceConfig) -> Rates:
    return Rates(
        fresh=round(price.input_per_mtok * _PER_TOKEN),
        output=round(price.output_per_mtok * _PER_TOKEN),
        cache_read=round(price.cache_read_per_mtok * _PER_TOKEN),
        cache_write=round(price.cache_write_per_mtok * _PER_TOKEN),
    )


def _micros(cost: int) -> int:
    return -(-cost // _PER_TOKEN)
