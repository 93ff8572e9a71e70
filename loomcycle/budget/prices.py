"""What tokens cost: the ``prices`` table of the configuration, and bounds of calls to come.

Money is counted in whole millionths of a US dollar, rounded up, so that sums are exact.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from fnmatch import fnmatchcase

from msgspec import Struct

from events.budget import Amount
from events.plan import Budget
from events.vocabulary import UsageTotals
from loomcycle.config.schema import PriceConfig
from replay.conversation import Message, ModelRequest, Text, ToolResult, ToolUse

ASSUMED_OUTPUT_TOKENS = 8192
"""The longest answer under a budget of an agent that sets no ``max_tokens``."""

BYTES_PER_TOKEN = 2
"""Of input that was not counted yet. Four are usual; one would be safe for any text, and refuse
calls of which most would have fitted."""

FRAMING_TOKENS = 8
"""What vendors put around each message, tool and block of the system."""

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


FREE = Rates(0, 0, 0, 0)


class Quote(Struct, frozen=True):
    """A call that sends at most ``given`` tokens, at these rates."""

    given: int
    rates: Rates

    def at_most(self, answer: int) -> Amount:
        """What it comes to with an answer of ``answer`` tokens."""
        cost = self.given * self.rates.dearest_input + answer * self.rates.output
        return Amount(_micros(cost), self.given + answer)

    def longest_answer(self, left: Budget) -> int | None:
        """Tokens of the longest answer that ``left`` pays for, negative when it does not even pay
        for the question; None when it bounds nothing."""
        lengths: list[int] = []
        if left.tokens is not None:
            lengths.append(left.tokens - self.given)
        if left.cost_micros is not None and self.rates.output:
            rest = left.cost_micros * _PER_TOKEN - self.given * self.rates.dearest_input
            lengths.append(rest // self.rates.output)
        return min(lengths, default=None)


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

    def quote(self, request: ModelRequest, *, money: bool, counted: int = 0) -> Quote:
        """What a call may come to, by what it sends. Raises Unpriced.

        ``counted``: tokens that the vendor counted in an earlier, shorter request of the run.
        """
        rates = self._known(request.provider, request.model) if money else FREE
        return Quote(max(input_tokens(request), counted), rates)

    def _known(self, provider: str, model: str) -> Rates:
        rates = self.of(provider, model)
        if rates is None:
            raise Unpriced(provider, model)
        return rates


def input_tokens(request: ModelRequest) -> int:
    """A bound of what a vendor counts as input, for text of two bytes a token or more."""
    parts = len(request.system) + len(request.tools) + len(request.messages)
    return -(-request_bytes(request) // BYTES_PER_TOKEN) + parts * FRAMING_TOKENS


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
