"""Failures that end a command, and the exit code that each kind means. Imports nothing."""

from __future__ import annotations


class CommandFailed(Exception):
    """The operation failed: network, server, database, a proof that did not hold."""

    code = "command_failed"
    exit_code = 1


class BadInvocation(CommandFailed):
    """The caller has to change something: a flag, a file, the configuration, the request."""

    code = "bad_invocation"
    exit_code = 2


class Quiet(CommandFailed):
    """Ends with the given exit code; everything was printed already."""

    def __init__(self, exit_code: int) -> None:
        super().__init__()
        self.exit_code = exit_code
