"""Commands and queries: everything a gateway can ask of the runtime, as plain functions.

What must not break here: a command validates, appends and answers; it trusts nothing that a
gateway did but the principal; errors are those of ``loomcycle/errors.py``.
"""
