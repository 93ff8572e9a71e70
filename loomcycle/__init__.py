"""The runtime: configuration, commands, admission, the worker, providers, tools, the CLI.

What must not break here: effects are performed only for a run that this worker owns, and
nothing but the journal writer appends to a journal.
"""

__version__ = "0.1.0"
