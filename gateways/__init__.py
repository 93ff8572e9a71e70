"""Protocol edges: parse, authenticate, hand a command down, answer or stream.

What must not break here: no business rule, no SQL, nothing written to the log.
"""
