"""Named SQL statements, read from ``.sql`` files beside the projection that owns the tables.

A file holds blocks that open with ``-- name:``; Python never concatenates SQL. The only change
made to a statement is its placeholders: ``:name`` becomes ``?1`` (SQLite) or ``$1`` (PostgreSQL).
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import Literal

Dialect = Literal["sqlite", "postgres"]

_BLOCK = re.compile(r"^-- name: *(\w+) *$", re.MULTILINE)
_OPTION = re.compile(r"^-- (table|params): *(.*)$")
_PLACEHOLDER = re.compile(r"(?<![:\w]):([a-z_]+)")


class SqlFileError(ValueError):
    """A ``.sql`` file breaks the rules of this module; the message names file and statement."""


@dataclass(frozen=True, slots=True)
class Statement:
    """One statement. ``params`` is the order in which a tuple of values fills ``sql``."""

    name: str
    table: str
    params: tuple[str, ...]
    sql: str


@cache
def load(package: str, file: str, dialect: Dialect) -> dict[str, Statement]:
    """Statements of ``package``/``file``.sql by name; ``file``.<dialect>.sql wins if it is there.

    Raises SqlFileError, FileNotFoundError.
    """
    folder = files(package)
    special = folder / f"{file}.{dialect}.sql"
    chosen = special if special.is_file() else folder / f"{file}.sql"
    where = f"{package}/{chosen.name}"
    parts = _BLOCK.split(chosen.read_text(encoding="utf-8"))
    statements: dict[str, Statement] = {}
    for name, block in zip(parts[1::2], parts[2::2], strict=True):
        if name in statements:
            raise SqlFileError(f"{where}: two statements named {name}")
        statements[name] = _statement(where, name, block, dialect)
    return statements


def _statement(where: str, name: str, block: str, dialect: Dialect) -> Statement:
    options: dict[str, str] = {}
    current = ""
    code: list[str] = []
    explained = False
    for line in block.splitlines():
        if not line.startswith("--"):
            code.append(line)
            continue
        option = _OPTION.match(line)
        if option is not None:
            current = option.group(1)
            options[current] = option.group(2).strip()
        elif current == "params":
            options[current] += " " + line.removeprefix("--").strip()
        else:
            explained = True
    if not explained:
        raise SqlFileError(f"{where}: {name} needs a sentence that says what it does")
    sql = "\n".join(code).strip().rstrip(";")
    params = tuple(p for p in re.split(r"[,\s]+", options.get("params", "")) if p)
    used = set(_PLACEHOLDER.findall(sql))
    if used != set(params):
        odd = ", ".join(sorted(used ^ set(params)))
        raise SqlFileError(f"{where}: {name}: params and placeholders differ in {odd}")
    numbers = {p: i for i, p in enumerate(params, 1)}
    mark = "?" if dialect == "sqlite" else "$"
    return Statement(
        name=name,
        table=options.get("table", ""),
        params=params,
        sql=_PLACEHOLDER.sub(lambda m: f"{mark}{numbers[m.group(1)]}", sql),
    )
