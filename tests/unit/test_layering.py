"""Dependencies point downwards only, and the sans-I/O package does none (design.md section 2).

Read from the source, so that an import inside a function counts as much as one at the top.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]

MAY_IMPORT: dict[str, set[str]] = {
    "events": set(),
    "replay": {"events"},
    "projections": {"events"},
    "loomcycle": {"events", "replay", "projections"},
    "gateways": {"events", "replay", "projections", "loomcycle"},
}

IMPURE = {
    "asyncio",
    "concurrent",
    "ctypes",
    "datetime",
    "http",
    "io",
    "logging",
    "multiprocessing",
    "os",
    "pathlib",
    "random",
    "secrets",
    "select",
    "selectors",
    "shutil",
    "signal",
    "socket",
    "ssl",
    "subprocess",
    "sys",
    "tempfile",
    "time",
    "urllib",
    "uuid",
    "httpx",
    "nats",
    "aiosqlite",
    "asyncpg",
    "sqlite3",
}

PURE = {"pathlib.PurePath", "pathlib.PurePosixPath"}

BEYOND_PURITY = {"replay/codejs/watchdog.py": {"threading", "time"}}
"""The time limit of a JavaScript program needs a clock; nothing that it reads enters a state."""


def modules(package: str) -> list[Path]:
    return sorted((ROOT / package).rglob("*.py"))


def imports_of(path: Path) -> Iterator[tuple[int, str]]:
    """(line, absolute dotted name) of everything imported, wherever it stands."""
    for node in ast.walk(ast.parse(path.read_text("utf-8"))):
        match node:
            case ast.Import(names=names):
                yield from ((node.lineno, alias.name) for alias in names)
            case ast.ImportFrom(module=module, names=names, level=level):
                inner = path.relative_to(ROOT).parts[:-level] if level else ()
                origin = ".".join((*inner, *([module] if module else [])))
                yield from ((node.lineno, f"{origin}.{alias.name}") for alias in names)


def tops_of(path: Path) -> Iterator[tuple[int, str]]:
    return ((line, name.partition(".")[0]) for line, name in imports_of(path))


@pytest.mark.parametrize("package", sorted(MAY_IMPORT))
def test_a_package_imports_only_what_lies_below_it(package: str) -> None:
    forbidden = set(MAY_IMPORT) - MAY_IMPORT[package] - {package} | {"tests"}
    found = [
        f"{path.relative_to(ROOT)}:{line} imports {top}"
        for path in modules(package)
        for line, top in tops_of(path)
        if top in forbidden
    ]
    assert modules(package)
    assert not found


@pytest.mark.parametrize("package", sorted(MAY_IMPORT))
def test_a_package_is_not_named_where_importing_it_by_name_would_evade_the_rule(
    package: str,
) -> None:
    above = set(MAY_IMPORT) - MAY_IMPORT[package] - {package}
    found = [
        f"{path.relative_to(ROOT)}:{node.lineno} imports {node.args[0].value} by name"
        for path in modules(package)
        for node in ast.walk(ast.parse(path.read_text("utf-8")))
        if isinstance(node, ast.Call)
        and isinstance(node.func, ast.Attribute | ast.Name)
        and (node.func.attr if isinstance(node.func, ast.Attribute) else node.func.id)
        in ("import_module", "__import__")
        and node.args
        and isinstance(node.args[0], ast.Constant)
        and str(node.args[0].value).partition(".")[0] in above
    ]
    assert not found


def test_there_is_no_other_package_at_the_top() -> None:
    found = {
        path.parent.name
        for path in ROOT.glob("*/*.py")
        if not path.parent.name.startswith(".") and path.parent.name not in ("dist", "build")
    }
    assert found - {"tests"} == set(MAY_IMPORT)


def test_the_operator_files_hold_no_python() -> None:
    """A package called ``nats`` would shadow the client library."""
    assert (ROOT / "nats").is_dir()
    assert not list((ROOT / "nats").rglob("*.py"))


def test_replay_imports_nothing_that_reads_a_clock_a_network_or_a_disk() -> None:
    found = []
    for path in modules("replay"):
        name = path.relative_to(ROOT).as_posix()
        for line, imported in imports_of(path):
            top = imported.partition(".")[0]
            if top in IMPURE - BEYOND_PURITY.get(name, set()) and imported not in PURE:
                found.append(f"{name}:{line} imports {imported}")
    assert not found


def test_replay_never_awaits() -> None:
    waiting = (ast.Await, ast.AsyncFunctionDef, ast.AsyncFor, ast.AsyncWith)
    found = [
        f"{path.relative_to(ROOT)}:{getattr(node, 'lineno', 0)} {type(node).__name__}"
        for path in modules("replay")
        for node in ast.walk(ast.parse(path.read_text("utf-8")))
        if isinstance(node, waiting)
    ]
    assert not found


def test_the_exceptions_to_purity_still_exist() -> None:
    for name, used in BEYOND_PURITY.items():
        assert used <= {top for _, top in tops_of(ROOT / name)}


@pytest.mark.parametrize("package", sorted(MAY_IMPORT))
def test_every_module_says_what_it_is_for(package: str) -> None:
    silent = [
        str(path.relative_to(ROOT))
        for path in modules(package)
        if not ast.get_docstring(ast.parse(path.read_text("utf-8")))
    ]
    assert not silent
