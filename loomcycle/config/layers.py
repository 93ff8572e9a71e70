"""Which configuration files are read, and how they become one tree (config spec 2 and 3).

Knows nothing of the schema. Reads files; decides nothing about their content.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

from msgspec import Struct

from loomcycle.config.expansion import expand, referenced_names
from loomcycle.config.problems import ConfigNotFound, FieldPath, Findings, Place, dotted
from loomcycle.config.tree import Node, TreeError, merge, parse

FILE_NAME: Final = "loomcycle.yaml"


class Layers(Struct, frozen=True):
    """The merged tree, one line per overridden value, and the names of all `${}` tokens."""

    root: Node
    overrides: tuple[str, ...]
    referenced: frozenset[str]


def discover(environ: Mapping[str, str], cwd: Path) -> list[Path]:
    """The first existing default file, alone in a list.

    Raises ConfigNotFound with every probed path when there is none.
    """
    probed = [cwd / FILE_NAME]
    if xdg := environ.get("XDG_CONFIG_HOME"):
        probed.append(Path(xdg) / "loomcycle" / FILE_NAME)
    if home := environ.get("HOME"):
        probed.append(Path(home) / ".config" / "loomcycle" / FILE_NAME)
    for path in probed:
        if path.is_file():
            return [path]
    raise ConfigNotFound(probed, explicit=False)


def layer_files(given: Sequence[Path], environ: Mapping[str, str], cwd: Path) -> list[Path]:
    """The layers of a server: `LOOMCYCLE_CONFIG_FILES`, then the given ones; last wins.

    Falls back to `discover` only when both are empty.
    """
    entries = environ.get("LOOMCYCLE_CONFIG_FILES", "").split(":")
    files = [Path(entry.strip()) for entry in entries if entry.strip()]
    files.extend(given)
    return files or discover(environ, cwd)


def read_layers(
    files: Sequence[Path], environ: Mapping[str, str], cwd: Path, findings: Findings
) -> Layers:
    """Read, expand, parse and merge the files; an empty one is skipped.

    Raises ConfigNotFound when a file does not exist. Other faults go to `findings`.
    """
    missing = [file for file in files if not (cwd / file).exists()]
    if missing:
        raise ConfigNotFound(missing, explicit=True)
    nowhere = Place(files[-1] if files else cwd)
    merged = Node({}, nowhere)
    overrides: list[str] = []
    referenced: set[str] = set()

    def record(path: FieldPath, place: Place) -> None:
        overrides.append(f"{dotted(path)} (set by {place.file}, overriding an earlier layer)")

    for file in files:
        text = _read(file, cwd, findings)
        referenced |= referenced_names(text)
        layer = _parse_layer(expand(text, environ), file, findings)
        if layer is not None:
            merged = merge(merged, layer, record)
    return Layers(merged, tuple(overrides), frozenset(referenced))


def _read(file: Path, cwd: Path, findings: Findings) -> str:
    try:
        return (cwd / file).read_text("utf-8-sig")
    except OSError as error:
        reason = error.strerror or type(error).__name__
    except UnicodeDecodeError:
        reason = "not UTF-8 text"
    findings.error((), f"read {file}: {reason}", "unreadable", place=Place(file))
    return ""


def _parse_layer(text: str, file: Path, findings: Findings) -> Node | None:
    try:
        layer = parse(text, file)
        if layer is not None and not isinstance(layer.value, dict):
            raise TreeError("the top level must be a mapping", layer.place.line)
    except TreeError as error:
        findings.error((), f"parse {file}: {error}", "syntax", place=Place(file, error.line))
        return None
    return layer
