"""Fresh contexts with the prelude in them, some made ahead of their use.

Making one takes longer than most programs run, and nothing in it depends on a program but how many
lines of it ours must stand behind. A context serves one execution and is never put back.
"""

from functools import cache
from importlib import resources
from typing import NamedTuple

import quickjs

MINT, SEAL, FEED, RUN, REPORT = range(5)

_KEPT = 8
_LEAST_LINES = 256

_PRELUDE, _ARGUMENTS, _CLOCK = (
    resources.files(__package__).joinpath(name).read_text("utf-8")
    for name in ("prelude.js", "arguments.js", "clock.js")
)


class Ready(NamedTuple):
    """A context that has run no program, and the prelude's entry in it."""

    context: quickjs.Context
    host: quickjs.Object


class Contexts:
    """Ready contexts for programs of one size class. For use by any thread."""

    def __init__(self, lines: int) -> None:
        """``lines``: ours are behind so many, so no line number of theirs is the program's."""
        blank = "\n" * lines
        self.prelude = blank + _PRELUDE.replace("// include arguments.js", _ARGUMENTS)
        self.clock = blank + _CLOCK
        self._ready: list[Ready] = []

    @property
    def kept(self) -> int:
        """How many are ready."""
        return len(self._ready)

    def take(self) -> Ready:
        """One that was made ahead, or a new one."""
        try:
            return self._ready.pop()
        except IndexError:
            return self._make()

    def prepare(self) -> None:
        """Make one ahead, unless enough are kept (about 120 kB each)."""
        if self.kept < _KEPT:
            self._ready.append(self._make())

    def _make(self) -> Ready:
        context = quickjs.Context()
        host = context.eval(self.prelude)
        context.set_time_limit(0.0)
        try:
            host(MINT)
        except quickjs.JSException:
            context.set_time_limit(-1.0)
        host(SEAL)
        return Ready(context, host)


def contexts_for(lines: int) -> Contexts:
    """The contexts that programs of up to ``lines`` lines share with others of their size."""
    return _of_class(max(_LEAST_LINES, 1 << (lines - 1).bit_length()))


@cache
def _of_class(lines: int) -> Contexts:
    return Contexts(lines)
