"""The command line: one module per command, imported only when that command is asked for.

What must not break: exit codes (0 success, 1 operational failure, 2 bad invocation), errors on
stderr as ``loomcycle: error: …``, and that a mistyped word never starts a server (cli spec 1).
Commands hold no rules of their own: they parse, call, print.
"""

from loomcycle.cli.entry import main

__all__ = ["main"]
