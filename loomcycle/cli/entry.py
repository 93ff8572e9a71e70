"""``main``: finds the command, runs it, and turns every way to end into an exit code.

Nothing but this table and click is imported before a command is known.
"""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Sequence
from typing import NamedTuple

import click

from loomcycle.cli.command import UsageAsked
from loomcycle.cli.errors import CommandFailed, Quiet


class Entry(NamedTuple):
    """Where a command lives and what it is for."""

    module: str
    attribute: str
    purpose: str


COMMANDS: dict[str, Entry] = {
    "serve": Entry("serve", "serve", "start the server (the default without a command)"),
    "run": Entry("run", "run", "one agent run against a running server, shown as it happens"),
    "validate": Entry("configuration", "validate", "check a configuration file"),
    "agents": Entry("configuration", "agents", "list configured agents"),
    "hash": Entry("configuration", "hash_", "content hash of an agent or a skill"),
    "health": Entry("health", "health", "ask a running server how it is"),
    "log": Entry("audit", "log", "read the log: a run, a session or a tenant"),
    "replay": Entry("replays", "replay", "prove journals by replaying them"),
    "projections": Entry("views", "projections", "rebuild, verify or inspect the views"),
    "version": Entry("version", "version", "print the version"),
}

_VERSION_WORDS = frozenset({"-v", "-version", "--version"})
_HELP_WORDS = frozenset({"help", "-h", "-help", "--help"})


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command line; returns the exit code."""
    name, rest = _command_of(list(sys.argv[1:] if argv is None else argv))
    if name == "help" and not rest:
        sys.stdout.write(usage())
        return 0
    if name == "help":
        name, rest = rest[0], [*rest[1:], "--help"]
    entry = COMMANDS.get(name)
    if entry is None:
        return _fail(f'unknown subcommand "{name}"', 2)
    module = importlib.import_module(f"loomcycle.cli.{entry.module}")
    return _run(getattr(module, entry.attribute), f"loomcycle {name}", rest)


def _command_of(args: list[str]) -> tuple[str, list[str]]:
    if not args:
        return "serve", []
    first = args[0]
    if first in _HELP_WORDS:
        return "help", args[1:]
    if first in _VERSION_WORDS:
        return "version", []
    if first.startswith("-"):
        return "serve", args
    return first, args[1:]


def _run(command: click.Command, name: str, args: list[str]) -> int:
    try:
        # click returns the code of ``--help`` (an Exit) instead of raising it
        result = command.main(args=args, prog_name=name, standalone_mode=False)
        sys.stdout.flush()
    except UsageAsked as asked:
        click.echo(asked.ctx.get_help() if asked.ctx else "", err=True)
        return 2
    except click.UsageError as error:
        _fail(error.format_message(), 2)
        if error.ctx is not None:
            click.echo(error.ctx.get_usage(), err=True)
        return 2
    except Quiet as quiet:
        return quiet.exit_code
    except CommandFailed as failure:
        return _fail(str(failure), failure.exit_code)
    except (click.Abort, KeyboardInterrupt):
        return _fail("interrupted", 1)
    except BrokenPipeError:  # the reader of our output left; Python would complain at exit
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    return result if isinstance(result, int) else 0


def _fail(message: str, code: int) -> int:
    print(f"loomcycle: error: {message}", file=sys.stderr)
    return code


def usage() -> str:
    """What ``loomcycle help`` prints."""
    lines = [
        "loomcycle: a self-hosted runtime for AI agents whose only truth is a log.",
        "",
        "Usage:",
        "  loomcycle [--config F]...              start the server",
        "  loomcycle <command> [flags] [args]",
        "  loomcycle help <command>               flags and examples of one command",
        "",
        "Commands:",
        *(f"  {name:<13} {entry.purpose}" for name, entry in COMMANDS.items()),
        "",
        "Examples:",
        "  loomcycle --config loomcycle.yaml",
        "  loomcycle serve --workers 4 --listen 127.0.0.1:8787",
        '  echo "What changed here?" | loomcycle run reviewer',
        "  loomcycle replay verify --all",
        "",
        "Exit codes: 0 success, 1 operational failure, 2 bad invocation.",
        "",
    ]
    return "\n".join(lines)
