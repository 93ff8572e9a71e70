"""Which package may import which: the order that the whole design rests on (design section 2)."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[2]

LAYERS: dict[str, tuple[str, ...]] = {
    "gateways": ("loomcycle", "replay", "projections", "events"),
    "loomcycle": ("replay", "projections", "events"),
    "replay": ("events",),
    "projections": ("events",),
    "events": (),
}
"""Package -> the packages of this project that it may import, besides itself."""


def modules() -> Iterator[Path]:
    """Every Python file of the packages."""
    for package in LAYERS:
        yield from sorted((ROOT / package).rglob("*.py"))


def imports_of(module: Path) -> set[str]:
    """Top-level names that ``module`` imports, anywhere in its text."""
    names: set[str] = set()
    for node in ast.walk(ast.parse(module.read_text())):
        match node:
            case ast.Import(names=aliases):
                names |= {alias.name.split(".")[0] for alias in aliases}
            case ast.ImportFrom(module=str(name), level=0):
                names.add(name.split(".")[0])
            case _:
                pass
    return names


def upward_imports() -> list[str]:
    """Imports that the order forbids, as ``module imports package``."""
    return [
        f"{module.relative_to(ROOT)} imports {name}"
        for module in modules()
        for name in sorted(imports_of(module))
        if name in LAYERS and name not in (own := package_of(module), *LAYERS[own])
    ]


def package_of(module: Path) -> str:
    return module.relative_to(ROOT).parts[0]
