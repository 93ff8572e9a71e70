"""Pages that explain the runtime to the agents that live in it (``Context`` op ``help``).

What must not break: a page describes what this version does, and a file of the operator's that
is no topic is skipped, never an error.
"""
