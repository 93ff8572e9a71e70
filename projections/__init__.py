"""SQL views folded from the log, and the queries over them. SQLite or PostgreSQL.

What must not break here: a fold reads no clock and does no I/O; a batch and the position that
it reaches are one transaction; whatever is in these tables can be deleted and comes back equal.
Imports ``events`` only.
"""
