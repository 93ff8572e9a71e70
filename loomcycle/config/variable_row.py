"""What one environment variable is: the row type of the table in `variables`.

Holds the limits and the secret string type; parses nothing.
"""

from __future__ import annotations

from typing import Any

from msgspec import Struct


class Secret(str):
    """A string whose representation hides its content."""

    __slots__ = ()

    def __repr__(self) -> str:
        return "Secret('***')" if self else "Secret('')"


class Limits(Struct, frozen=True, kw_only=True):
    """How a number is brought into its range, in this order.

    `off`: zero or less becomes 0, which means "off" or "no limit". `accept`: a value outside
    is ignored and the default stays. `clamp`: a value outside becomes the nearest bound.
    """

    off: bool = False
    accept: tuple[float, float] | None = None
    clamp: tuple[float, float] | None = None


NO_LIMITS = Limits()


class Meaning(Struct, frozen=True, kw_only=True):
    """What an environment variable is called and what it does."""

    name: str
    effect: str
    limits: Limits = NO_LIMITS
    secret: bool = False
    trim: str = ""
    off_word: str = ""


class Variable(Struct, frozen=True, kw_only=True):
    """One row of the table: a field of `Environment` with its meaning, type and default."""

    field: str
    kind: type
    default: Any
    meaning: Meaning


INFINITY = float("inf")
OFF = Limits(off=True)
POSITIVE = Limits(accept=(1, INFINITY))
AT_LEAST_0 = Limits(accept=(0, INFINITY))
RATE = Limits(accept=(0, 1))


PREFIX = "LOOMCYCLE_"


def own(name: str, effect: str, limits: Limits = NO_LIMITS, **more: Any) -> Meaning:
    """A variable of this project; the name is given without its prefix."""
    return Meaning(name=PREFIX + name, effect=effect, limits=limits, **more)


def vendor(name: str, effect: str, **more: Any) -> Meaning:
    """A variable whose name belongs to somebody else, given in full."""
    return Meaning(name=name, effect=effect, **more)


def vendor_key(name: str, effect: str) -> Meaning:
    """A secret whose name belongs to somebody else."""
    return Meaning(name=name, effect=effect, secret=True)


Names = tuple[str, ...]
