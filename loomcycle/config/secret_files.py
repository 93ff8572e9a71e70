"""Values that live in files: `auth.env` beside the configuration, and `NAME_FILE` variables.

Works on a copy of the environment and never writes to the process's own.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final

from loomcycle.config.expansion import EXPANDABLE_NAMES
from loomcycle.config.problems import Findings
from loomcycle.config.variable_row import PREFIX
from loomcycle.config.variables import VARIABLES

AUTH_ENV: Final = "auth.env"
_SUFFIX: Final = "_FILE"
_SECRET_NAMES: Final = (
    frozenset(row.meaning.name for row in VARIABLES if row.meaning.secret) | EXPANDABLE_NAMES
)
_SECRET_ENDINGS: Final = (
    "_KEY",
    "_TOKEN",
    "_SECRET",
    "_AUTH",
    "_PASSWORD",
    "_CREDENTIAL",
    "_CREDENTIALS",
    "_DSN",
    "_PEPPER",
    "_BEARER",
    "_HEADERS",
)


def is_secret_name(name: str) -> bool:
    """Whether a variable may be given as `NAME_FILE`: one of ours that holds a secret."""
    return name in _SECRET_NAMES or (name.startswith(PREFIX) and name.endswith(_SECRET_ENDINGS))


def parse_auth_env(text: str) -> dict[str, str]:
    """The `KEY=VALUE` lines of an env file; comments, blanks and malformed lines are skipped."""
    values: dict[str, str] = {}
    for line in text.splitlines():
        entry = line.strip().removeprefix("export ").lstrip()
        key, equals, value = entry.partition("=")
        key, value = key.strip(), value.strip()
        if entry.startswith("#") or not equals or not key or " " in key:
            continue
        if len(value) >= 2 and value[0] == value[-1] and value[0] in "'\"":
            value = value[1:-1]
        values[key] = value
    return values


def load_auth_env(directory: Path, environ: dict[str, str], notes: list[str]) -> tuple[str, ...]:
    """Fill unset or empty variables from `auth.env`; returns the names that were set.

    A missing file is silent and an unreadable one only a note.
    """
    path = directory / AUTH_ENV
    try:
        values = parse_auth_env(path.read_text("utf-8"))
    except FileNotFoundError:
        return ()
    except (OSError, UnicodeDecodeError) as error:
        notes.append(f"auth.env: cannot read {path}: {_reason(error)}")
        return ()
    loaded = tuple(name for name in values if not environ.get(name))
    environ.update({name: values[name] for name in loaded})
    if loaded:
        notes.append(f"auth.env: loaded {len(loaded)} var(s) from {path}")
    return loaded


def read_secret_files(environ: dict[str, str], cwd: Path, findings: Findings) -> None:
    """Set each secret whose `NAME_FILE` is given while `NAME` is unset or empty."""
    for variable in sorted(environ):
        name = variable.removesuffix(_SUFFIX)
        if name != variable and is_secret_name(name) and not environ.get(name):
            read_secret_file(name, environ, cwd, findings)


def read_secret_file(name: str, environ: dict[str, str], cwd: Path, findings: Findings) -> None:
    """Set `name` from the file that `NAME_FILE` names, less one trailing newline.

    A file without a secret in it is a problem, never a feature that is off.
    """
    variable = name + _SUFFIX
    given = environ.get(variable, "")
    if not given or environ.get(name):
        return
    try:
        text = (cwd / given).read_text("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        findings.error((variable,), f"cannot read {given}: {_reason(error)}", "unreadable")
        return
    if not text.strip():
        message = f"{given} is empty: write the secret into it, or unset {variable}"
        findings.error((variable,), message, "missing")
        return
    environ[name] = text.removesuffix("\n").removesuffix("\r")


def secret_mask(environ: Mapping[str, str]) -> Callable[[str], str]:
    """A function that replaces the values of secret variables in a text by their names."""
    named = [(value, name) for name, value in environ.items() if is_secret_name(name)]
    secrets = sorted((pair for pair in named if len(pair[0]) >= 8), key=lambda p: -len(p[0]))

    def mask(text: str) -> str:
        for value, name in secrets:
            text = text.replace(value, f"[redacted:{name}]")
        return text

    return mask


def _reason(error: OSError | UnicodeDecodeError) -> str:
    if isinstance(error, OSError):
        return error.strerror or type(error).__name__
    return "not UTF-8 text"
