"""What a projection is: a name, a version, tables and a pure fold from log items to writes.

A fold sees items in stream order and answers with named statements and their values. It has no
clock, no I/O and no state that outlives a batch, so that a rebuild gives the same rows however
the stream was cut into batches.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

from projections.statements import Dialect, Statement, load

Kind = Literal["runs", "state"]
"""What a stream holds; RUNS-0 to RUNS-3 are four streams of one kind."""

Value = str | int | float | bytes | None
Params = tuple[Value, ...]


class Write(NamedTuple):
    """One row change. Writes to one table with one ``key`` keep their order, others commute."""

    statement: str
    key: Hashable
    params: Params


class Rows(NamedTuple):
    """Rows for one statement that no other write touches: their order does not matter."""

    statement: str
    rows: list[Params]


Change = Write | Rows


@dataclass(frozen=True)
class Projection:
    """A view. Its package holds ``schema``, ``indexes``, ``writes`` and ``queries`` (.sql).

    ``version`` rises with every change of tables or fold: the view is then rebuilt.
    ``source`` is the one kind of stream that its tables fold. ``tables`` maps each table to
    the columns that order it, which ``verify`` compares in.
    """

    name: str
    version: int
    source: Kind
    tables: dict[str, tuple[str, ...]]
    fold: Callable[[Sequence[Any]], Sequence[Change]]

    @property
    def package(self) -> str:
        return f"projections.{self.name}"

    def schema(self, dialect: Dialect) -> list[Statement]:
        """The statements that create the tables, in order."""
        return list(load(self.package, "schema", dialect).values())

    def indexes(self, dialect: Dialect) -> list[Statement]:
        """The statements that create what only readers need, once the log is folded."""
        return list(load(self.package, "indexes", dialect).values())

    def writes(self, dialect: Dialect) -> dict[str, Statement]:
        return load(self.package, "writes", dialect)

    def queries(self, dialect: Dialect) -> dict[str, Statement]:
        return load(self.package, "queries", dialect)


class Group(NamedTuple):
    """Values for one statement, executed together."""

    statement: Statement
    rows: list[Params]


def grouped(changes: Iterable[Change], statements: dict[str, Statement]) -> list[Group]:
    """Reorder writes into few groups without changing what they mean.

    The k-th write of a key goes to round k; rounds run one after another, and inside a round
    every key of a table appears once, so its statements may be gathered.
    """
    rounds: list[dict[str, list[Params]]] = []
    turns: dict[tuple[str, Hashable], int] = {}
    groups: list[Group] = []
    for change in changes:
        if isinstance(change, Rows):
            if change.rows:
                groups.append(Group(statements[change.statement], change.rows))
            continue
        name, key, params = change
        place = (statements[name].table, key)
        turn = turns.get(place, 0)
        turns[place] = turn + 1
        if turn == len(rounds):
            rounds.append({})
        rows = rounds[turn].get(name)
        if rows is None:
            rounds[turn][name] = [params]
        else:
            rows.append(params)
    groups += (Group(statements[name], rows) for turn in rounds for name, rows in turn.items())
    return groups


class Position(NamedTuple):
    """Everything up to ``seq`` is folded; ``held`` says why nothing after it can be."""

    seq: int
    held: str = ""


class Move(NamedTuple):
    """The position in one stream, moved in the transaction of the writes up to it."""

    stream: str
    before: int
    after: Position


class Manifest(NamedTuple):
    """What a set of tables was folded with."""

    versions: dict[str, int]
    vocabulary: str


class ViewUnavailable(Exception):
    """The view cannot answer now (being rebuilt, unreachable, or too far behind): try again."""

    code = "view_unavailable"


class ViewHeld(ViewUnavailable):
    """The view stands before an event that a newer version wrote: update this replica."""

    code = "view_held"


class LogCut(Exception):
    """The log ends before what the view has folded: what it lost is known only here.

    Nothing is built again until an operator accepts the loss by asking for a rebuild.
    """


class Damaged(Exception):
    """The tables are gone or not readable: they must be rebuilt from the log."""


class PositionMoved(Exception):
    """Somebody else wrote the view: read its positions again."""


class DatabaseBusy(Exception):
    """A passing failure (locked, disk full, connection lost): nothing was written."""
