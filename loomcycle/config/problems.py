"""What can be wrong with a configuration: one `Problem` each, all of them in one error.

Loading collects problems instead of stopping at the first. Messages never contain a secret
or an expanded value beyond the short word that was refused.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from difflib import get_close_matches
from pathlib import Path

from msgspec import Struct

FieldPath = tuple[str | int, ...]

EXAMPLE = Path(__file__).resolve().parents[1] / "demo" / "demo.yaml"
"""Where this installation has a configuration that works."""


class Place(Struct, frozen=True):
    """Where a value was set; `line` counts from 1, 0 when it has no line."""

    file: Path
    line: int = 0

    def __str__(self) -> str:
        return f"{self.file}:{self.line}" if self.line else str(self.file)


class Problem(Struct, frozen=True, kw_only=True):
    """One thing that keeps the server from starting.

    `code` is stable (`wrong_type`, `out_of_range`, `unknown_name`, `missing`, `conflict`,
    `syntax`, `unreadable`, `override`, `retired`, `unsupported`); `path` is the dotted field
    path or the variable's name.
    """

    path: str
    message: str
    code: str
    place: Place | None = None

    def __str__(self) -> str:
        text = f"{self.path}: {self.message}" if self.path else self.message
        return f"{text} ({self.place})" if self.place else text


class ConfigError(Exception):
    """The configuration cannot be used; `problems` lists every reason found.

    `warnings` are those found on the way: a misspelt key often explains a problem.
    """

    code = "config_invalid"

    def __init__(self, problems: Sequence[Problem], warnings: Sequence[str] = ()) -> None:
        self.problems = tuple(problems)
        self.warnings = tuple(warnings)
        super().__init__(self.problems)

    def __str__(self) -> str:
        if len(self.problems) == 1:
            return str(self.problems[0])
        lines = (f"  - {problem}" for problem in self.problems)
        return "\n".join((f"{len(self.problems)} problems:", *lines))


class ConfigNotFound(Exception):
    """No configuration file: a named one is missing, or none of the probed ones exists."""

    code = "config_not_found"

    def __init__(self, probed: Sequence[Path], *, explicit: bool) -> None:
        self.probed = tuple(probed)
        self.explicit = explicit
        super().__init__(self.probed, explicit)

    def __str__(self) -> str:
        if self.explicit:
            return "config file not found: " + ", ".join(map(str, self.probed))
        lines = (f"  {path}" for path in self.probed)
        hint = f"name a file with --config; {EXAMPLE} is an example"
        return "\n".join(("no config file found; looked for:", *lines, hint))


def dotted(path: FieldPath) -> str:
    """`("tiers", "low", 2, "model")` as `tiers.low[2].model`."""
    text = ""
    for part in path:
        if isinstance(part, int):
            text += f"[{part}]"
        else:
            text += f".{part}" if text else part
    return text


def did_you_mean(word: str, known: Iterable[str], *, cutoff: float = 0.6) -> str:
    """` (did you mean "x"?)` for the closest known word, or the empty string."""
    close = get_close_matches(word, list(known), n=1, cutoff=cutoff)
    return f' (did you mean "{close[0]}"?)' if close else ""


class Findings:
    """Collects problems and warnings of one load.

    `locate` gives the place of a field path; `mask` hides secrets in messages.
    """

    def __init__(self, locate: Callable[[FieldPath], Place | None] = lambda _path: None) -> None:
        self.problems: list[Problem] = []
        self.warnings: list[str] = []
        self.locate = locate
        self.mask: Callable[[str], str] = lambda text: text

    def error(
        self, path: FieldPath, message: str, code: str, *, place: Place | None = None
    ) -> None:
        """Record a problem at a field path; its place is looked up unless given.

        A value that is missing because it was refused before is not reported again.
        """
        text = dotted(path)
        if code == "missing" and any(problem.path == text for problem in self.problems):
            return
        where = place or self.locate(path)
        self.problems.append(Problem(path=text, message=self.mask(message), code=code, place=where))

    def warn(self, path: FieldPath, message: str, *, place: Place | None = None) -> None:
        """Record a warning at a field path; its place is looked up unless given."""
        where = place or self.locate(path)
        suffix = f" ({where})" if where else ""
        self.warnings.append(f"{dotted(path)}: {self.mask(message)}{suffix}")

    def raise_if_any(self) -> None:
        """Raise ConfigError when a problem was recorded."""
        if self.problems:
            raise ConfigError(self.problems, self.warnings)
