"""What a SQL back end does for the projector and for readers; implemented for two databases.

Tables live in one of two slots, ``a`` and ``b``: readers use the slot that is being served, a
rebuild fills the other one. ``tests/integration/views`` holds both back ends to this.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from contextlib import AbstractAsyncContextManager
from typing import Literal, Protocol

from projections.framework import Group, Manifest, Move, Params, Position, Projection, Value
from projections.statements import Dialect, Statement

Slot = Literal["a", "b"]
Row = tuple[Value, ...]
Request = Literal["rebuild", "damaged"]


def other(slot: Slot | None) -> Slot:
    """The slot to build in while ``slot`` is served."""
    return "b" if slot == "a" else "a"


class Tables(Protocol):
    """One set of tables, for the projector. Every method may raise Damaged or DatabaseBusy."""

    async def manifest(self) -> Manifest: ...
    async def positions(self) -> dict[str, Position]: ...

    async def commit(self, groups: Sequence[Group], moves: Sequence[Move]) -> None:
        """Write everything in one transaction, or nothing.

        Raises PositionMoved when a stream is not where ``moves`` expect it.
        """
        ...

    async def settle(self, projections: Sequence[Projection]) -> None:
        """What ``create`` made is complete: make it lasting, and quick to read."""
        ...

    async def note_vocabulary(self, fingerprint: str) -> None: ...
    async def fetch(self, query: Statement, params: Params = ()) -> list[Row]: ...

    def rows(self, query: Statement) -> AsyncGenerator[Sequence[Row], None]:
        """All rows of ``query`` in pages; memory stays small however many there are."""
        ...

    async def check(self) -> None:
        """Raise Damaged when the tables were deleted or replaced under our feet. Cheap."""
        ...

    async def close(self) -> None: ...


class Reader(Protocol):
    """Queries on whatever is served, from any process; safe for concurrent use on one loop."""

    async def fetch(self, query: Statement, params: Params = ()) -> list[Row]:
        """Raises ViewUnavailable while nothing is served."""
        ...

    async def close(self) -> None: ...


class Backend(Protocol):
    """One database and its slots. Nothing here is used by two tasks at once, ``ask`` excepted."""

    @property
    def dialect(self) -> Dialect: ...

    async def lock(self) -> bool:
        """Become the only writer; False while another process is. Freed by the holder's death."""
        ...

    async def unlock(self) -> None: ...
    async def serving(self) -> Slot | None: ...

    async def open(self, slot: Slot) -> Tables:
        """Raises Damaged when the slot holds no readable tables."""
        ...

    async def create(
        self,
        slot: Slot,
        projections: Sequence[Projection],
        starts: dict[str, int],
        vocabulary: str,
    ) -> Tables:
        """Empty tables in ``slot``, whatever was there; ``starts`` are the first positions.

        They are fit for filling, and for being served once they are settled.
        """
        ...

    async def serve(self, slot: Slot) -> None:
        """Readers use ``slot`` from now on; the other one is dropped."""
        ...

    async def withdraw(self, slot: Slot) -> None:
        """Serve nothing, and put the damaged tables of ``slot`` out of the way."""
        ...

    def snapshot(self) -> AbstractAsyncContextManager[Tables]:
        """What is served, frozen at one moment. Raises ViewUnavailable."""
        ...

    def scratch(
        self, projections: Sequence[Projection], starts: dict[str, int]
    ) -> AbstractAsyncContextManager[Tables]:
        """Empty tables that vanish at the end."""
        ...

    async def ask(self, request: Request) -> None:
        """Leave a request for the writer, whichever process it is."""
        ...

    async def asked(self) -> Request | None:
        """Take the request, if there is one."""
        ...

    def reader(self) -> Reader: ...
    async def close(self) -> None: ...
