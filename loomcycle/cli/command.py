"""Commands as the command line's rules want them: Go's flag syntax on top of click.

``-flag`` equals ``--flag``; ``-h`` prints the usage on stderr and is an invocation error, while
``--help`` prints everything on stdout. Knows no command.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, NamedTuple, TypeVar
from urllib.parse import urlsplit

import click

from loomcycle.cli.errors import BadInvocation

DEFAULT_TARGET = "http://127.0.0.1:8787"

F = TypeVar("F", bound=Callable[..., Any])


class UsageAsked(click.UsageError):
    """``-h``: print the usage, no message."""


class Command(click.Command):
    """``examples``: whole command lines, shown by ``--help``.

    ``flags_first``: parsing of flags stops at the first positional argument.
    """

    def __init__(
        self, *args: Any, examples: Iterable[str] = (), flags_first: bool = False, **kwargs: Any
    ) -> None:
        super().__init__(*args, **kwargs)
        self.examples = tuple(examples)
        self.allow_interspersed_args = not flags_first

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        return super().parse_args(ctx, double_dashes(self, ctx, args))

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        _write_examples(self.examples, formatter)


class Group(click.Group):
    """A noun with verbs; without a verb it is an invocation error."""

    command_class = Command

    def __init__(self, *args: Any, examples: Iterable[str] = (), **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.no_args_is_help = False
        self.examples = tuple(examples)

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        return super().parse_args(ctx, double_dashes(self, ctx, args))

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        if args and args[0] not in self.commands:
            known = ", ".join(sorted(self.commands))
            raise click.UsageError(f'unknown verb "{args[0]}" (known: {known})', ctx)
        return super().resolve_command(ctx, args)

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        _write_examples(self.examples, formatter)


def double_dashes(command: click.Command, ctx: click.Context, args: list[str]) -> list[str]:
    """Rewrite ``-name`` to ``--name`` where ``--name`` is an option of ``command``.

    Values of options, and everything after ``--``, stay as they are. Raises UsageAsked.
    """
    takes_value = {
        name: not option.is_flag
        for option in command.get_params(ctx)
        if isinstance(option, click.Option)
        for name in (*option.opts, *option.secondary_opts)
    }
    rewritten: list[str] = []
    rest = iter(args)
    for argument in rest:
        if argument == "--" or (
            not argument.startswith("-") and not command.allow_interspersed_args
        ):
            return [*rewritten, argument, *rest]
        if argument == "-h":
            raise UsageAsked("", ctx)
        name, equals, value = argument.partition("=")
        if not name.startswith("--") and f"-{name}" in takes_value:
            name = f"-{name}"
        rewritten.append(name + equals + value)
        if takes_value.get(name) and not equals:
            rewritten += [value for value in [next(rest, None)] if value is not None]
    return rewritten


def _write_examples(examples: Iterable[str], formatter: click.HelpFormatter) -> None:
    if lines := list(examples):
        with formatter.section("Examples"):
            for line in lines:
                formatter.write(f"  {line}\n")


def seconds(text: str) -> float:
    """Option type: a Go-style duration (``5s``, ``1m30s``) as seconds."""
    from loomcycle.config.durations import parse_duration

    try:
        return parse_duration(text).total_seconds()
    except ValueError as reason:
        raise click.BadParameter(f"{text!r}: {reason}") from None


def config_option(function: F) -> F:
    """``--config F``, any number of times."""
    option = click.option(
        "--config",
        "configs",
        multiple=True,
        metavar="F",
        type=click.Path(path_type=Path),
        help="Configuration file; repeat for layers, the last wins.",
    )
    return option(function)


def server_options(function: F) -> F:
    """``--target`` and ``--token`` of commands that talk to a running server."""
    target = click.option(
        "--target",
        metavar="URL",
        help=f"Server address (LOOMCYCLE_BASE_URL, else {DEFAULT_TARGET}).",
    )
    token = click.option(
        "--token",
        metavar="TOKEN",
        help="Bearer token (LOOMCYCLE_AUTH_TOKEN).",
    )
    return target(token(function))


class Server(NamedTuple):
    """Where a server listens; ``token`` is "" when none is to be sent."""

    url: str
    token: str


def server_of(target: str | None, token: str | None) -> Server:
    """The server that flags, then variables, then the defaults name. Raises BadInvocation."""
    url = (target or os.environ.get("LOOMCYCLE_BASE_URL") or DEFAULT_TARGET).rstrip("/")
    try:
        parts = urlsplit(url)
        usable = parts.scheme in ("http", "https") and bool(parts.hostname)
    except ValueError:
        usable = False
    if not usable:
        raise BadInvocation(f'server address "{url}": write it as {DEFAULT_TARGET}')
    return Server(url, token or os.environ.get("LOOMCYCLE_AUTH_TOKEN", ""))
