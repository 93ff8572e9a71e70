"""HTTP callbacks of applications around every tool call (hooks.md).

What must not break: what the hooks before a call decided is in the journal before the tool runs
and is never asked for again; a deployment without hooks pays nothing; nothing that a hook says
can add a tool, name another one, or pass a guard that failed closed.
"""
