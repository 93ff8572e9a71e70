"""Reads the environment into a typed `Environment` and prints the table of variables.

Unusable numbers never stop the server: the default stays and a warning names the variable.
Reads no files and never the process environment itself.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final

from loomcycle.config.expansion import EXPANDABLE_NAMES
from loomcycle.config.problems import Findings, did_you_mean
from loomcycle.config.variable_row import PREFIX, Limits, Secret, Variable
from loomcycle.config.variables import GROUPS, VARIABLES, Environment

RETIRED: Final = ("LOOMCYCLE_READ_ROOT", "LOOMCYCLE_WRITE_ROOT", "LOOMCYCLE_BASH_CWD")

_FOREIGN: Final = frozenset(
    {"LOOMCYCLE_CONFIG", "LOOMCYCLE_BIN", "LOOMCYCLE_ENV_FILE", *RETIRED, *EXPANDABLE_NAMES}
)
"""Variables of wrapper scripts and of this module's own errors: never "unknown"."""


def read_environment(environ: Mapping[str, str], findings: Findings) -> Environment:
    """Parse every variable of the table; an empty value counts as unset."""
    values: dict[str, Any] = {}
    for row in VARIABLES:
        text = environ.get(row.meaning.name, "")
        if text == "":
            continue
        try:
            values[row.field] = _parse(text, row)
        except ValueError as reason:
            findings.warn((row.meaning.name,), f"{reason}; using {_shown(row.default)}")
    return Environment(**values)


def _parse(text: str, row: Variable) -> Any:
    if row.kind is bool:
        return text != "0" if row.default else text == "1"
    if row.kind is int or row.kind is float:
        return _number(text, row)
    if row.kind is tuple:
        return tuple(split_names(text))
    if row.kind is dict:
        pairs = (part.partition("=") for part in text.split(","))
        return {
            key.strip(): Secret(value.strip()) for key, eq, value in pairs if eq and key.strip()
        }
    if row.kind is Secret:
        return Secret(text)
    text = text.strip()
    return "" if row.meaning.off_word == text else text.rstrip(row.meaning.trim or None)


def _number(text: str, row: Variable) -> Any:
    try:
        number = int(text.strip()) if row.kind is int else float(text.strip())
    except ValueError:
        wanted = "a whole number" if row.kind is int else "a number"
        raise ValueError(f"not {wanted}, ignored") from None
    if number != number:
        raise ValueError("not a number, ignored")
    return _limit(number, row.meaning.limits)


def _limit(number: float, limits: Limits) -> float:
    if limits.off and number <= 0:
        return type(number)(0)
    if limits.accept and not limits.accept[0] <= number <= limits.accept[1]:
        raise ValueError(f"{number} is outside the accepted range, ignored")
    if limits.clamp:
        low, high = limits.clamp
        number = type(number)(min(max(number, low), high))
    return number


def _shown(default: Any) -> str:
    return "the configured value" if default is None else str(default)


def split_names(text: str) -> Iterable[str]:
    """The entries of a comma separated list, trimmed, empty ones dropped."""
    return (part.strip() for part in text.split(",") if part.strip())


def check_retired(environ: Mapping[str, str], findings: Findings) -> None:
    """Report variables that used to be roots of the file tools."""
    for name in RETIRED:
        if environ.get(name, ""):
            findings.error(
                (name,),
                "no longer supported; declare a directory under `volumes:` instead",
                "retired",
            )


def warn_misspelt(
    environ: Mapping[str, str], referenced: Iterable[str], findings: Findings
) -> None:
    """Warn of `LOOMCYCLE_` variables that nothing reads and that resemble a known one."""
    known = {row.meaning.name for row in VARIABLES}
    allowed = known | _FOREIGN | set(referenced)
    for name in sorted(environ):
        if not name.startswith(PREFIX) or name.removesuffix("_FILE") in allowed:
            continue
        hint = did_you_mean(name, known, cutoff=0.9)
        if hint:
            findings.warn((name,), f"unknown variable, not read{hint}")


def variables_table() -> str:
    """All variables as Markdown tables, one per group, for the documentation and help."""
    by_field = {row.field: row for row in VARIABLES}
    lines: list[str] = []
    for title, group in GROUPS:
        lines += [f"### {title}", "", "| Variable | Default | Effect |", "|---|---|---|"]
        for field in group.__annotations__:
            row = by_field[field]
            lines.append(f"| `{row.meaning.name}` | {_default_cell(row)} | {row.meaning.effect} |")
        lines.append("")
    return "\n".join(lines)


def _default_cell(row: Variable) -> str:
    match row.default:
        case True:
            return "on"
        case False:
            return "off"
        case None | "" | () | {}:
            return "–"
        case value:
            return f"`{value}`"
