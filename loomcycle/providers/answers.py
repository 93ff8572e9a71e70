"""How every driver reads a streamed answer: frame by frame, to its proper end.

What a frame means is each driver's own business; when an answer was cut short, and what of it
still comes out, is the same for all.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Iterable
from contextlib import aclosing
from typing import Protocol

from loomcycle.providers.base import Delta, ProviderError, RetryDelta
from loomcycle.providers.transport import Exchange


class Answer(Protocol):
    """What the frames read so far amount to."""

    @property
    def ended(self) -> bool:
        """Whether the vendor's last frame was read; false for ever where none is marked so."""
        ...

    @property
    def complete(self) -> bool:
        """Whether the body may end here."""
        ...

    def read(self, data: bytes) -> Iterable[Delta]:
        """What a frame adds; frames that cannot be read add nothing. Raises ProviderError."""
        ...

    def flush(self) -> Iterable[Delta]:
        """What was held back."""
        ...


async def deltas_of(exchange: Exchange, answer: Answer) -> AsyncGenerator[Delta, None]:
    """Retries and the answer's deltas; what is held back comes out before a failure too.

    Raises ProviderError. Closing the generator aborts the exchange at once.
    """
    try:
        async with aclosing(exchange.frames()) as frames:
            async for frame in frames:
                if isinstance(frame, RetryDelta):
                    yield frame
                    continue
                for delta in answer.read(frame):
                    yield delta
                exchange.ended = answer.ended
        if not answer.complete:
            raise exchange.cut_short()
    except ProviderError:
        for delta in answer.flush():
            yield delta
        raise
    for delta in answer.flush():
        yield delta
