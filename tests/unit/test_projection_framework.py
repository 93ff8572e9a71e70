"""Grouping of writes, and the SQL files: what may be reordered, and what a file must say."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from projections.framework import Group, Write, grouped
from projections.statements import SqlFileError, Statement, load
from projections.views import PROJECTIONS

STATEMENTS = {
    name: Statement(name, table, (), "")
    for name, table in {"put": "t", "add": "t", "del": "t", "log": "u"}.items()
}


def outcome(groups: list[Group]) -> dict[tuple[str, object], list[str]]:
    """What happened to each row, in order."""
    seen: dict[tuple[str, object], list[str]] = {}
    for statement, rows in groups:
        for row in rows:
            seen.setdefault((statement.table, row[0]), []).append(f"{statement.name}{row[1]!r}")
    return seen


@given(st.lists(st.tuples(st.sampled_from(sorted(STATEMENTS)), st.integers(0, 5))))
def test_every_row_sees_its_changes_in_their_order(plan: list[tuple[str, int]]) -> None:
    writes = [Write(name, key, (key, i)) for i, (name, key) in enumerate(plan)]
    one_by_one = [Group(STATEMENTS[w.statement], [w.params]) for w in writes]
    assert outcome(grouped(writes, STATEMENTS)) == outcome(one_by_one)


def test_writes_of_many_rows_become_few_groups() -> None:
    writes = [Write(name, key, (key, 0)) for key in range(100) for name in ("put", "add", "add")]
    assert [(g.statement.name, len(g.rows)) for g in grouped(writes, STATEMENTS)] == [
        ("put", 100),
        ("add", 100),
        ("add", 100),
    ]


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    folder = tmp_path / "sql_package_for_tests"
    folder.mkdir()
    (folder / "__init__.py").write_text("")
    monkeypatch.syspath_prepend(tmp_path)
    yield folder
    sys.modules.pop("sql_package_for_tests", None)
    load.cache_clear()


GOOD = """-- name: find
-- Finds it.
-- params: b,
--   a
SELECT x::text FROM t WHERE a = :a AND b = :b OR c = :a;
"""


def test_placeholders_are_numbered_in_the_order_of_the_parameters(package: Path) -> None:
    (package / "queries.sql").write_text(GOOD)
    sqlite = load("sql_package_for_tests", "queries", "sqlite")["find"]
    postgres = load("sql_package_for_tests", "queries", "postgres")["find"]
    assert sqlite.params == ("b", "a")
    assert sqlite.sql.endswith("a = ?2 AND b = ?1 OR c = ?2")
    assert postgres.sql == "SELECT x::text FROM t WHERE a = $2 AND b = $1 OR c = $2"


def test_a_file_of_the_dialect_wins(package: Path) -> None:
    (package / "queries.sql").write_text(GOOD)
    (package / "queries.postgres.sql").write_text("-- name: other\n-- Says one.\nSELECT 1;\n")
    assert set(load("sql_package_for_tests", "queries", "postgres")) == {"other"}
    assert set(load("sql_package_for_tests", "queries", "sqlite")) == {"find"}


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("-- name: x\nSELECT 1;\n", "needs a sentence"),
        ("-- name: x\n-- Says.\nSELECT :a;\n", "differ in a"),
        ("-- name: x\n-- Says.\n-- params: a, b\nSELECT :a;\n", "differ in b"),
        ("-- name: x\n-- S.\nSELECT 1;\n-- name: x\n-- S.\nSELECT 1;\n", "two statements named x"),
    ],
)
def test_a_careless_file_is_refused(package: Path, text: str, complaint: str) -> None:
    (package / "queries.sql").write_text(text)
    with pytest.raises(SqlFileError, match=complaint):
        load("sql_package_for_tests", "queries", "sqlite")


@pytest.mark.parametrize("dialect", ["sqlite", "postgres"])
def test_every_projection_has_its_files(dialect: str) -> None:
    for projection in PROJECTIONS:
        created = " ".join(s.sql for s in projection.schema(dialect))  # type: ignore[arg-type]
        tables = {s.table for s in projection.writes(dialect).values()}  # type: ignore[arg-type]
        assert tables == set(projection.tables)
        for table in projection.tables:
            assert f"CREATE TABLE {table} " in created
            assert f"all_of_{table}" in projection.queries(dialect)  # type: ignore[arg-type]


def test_query_names_are_unique_over_all_projections() -> None:
    names = [name for p in PROJECTIONS for name in p.queries("sqlite")]
    assert len(names) == len(set(names))
