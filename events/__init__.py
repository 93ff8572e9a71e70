"""The vocabulary and the log: event types, subjects, streams, and every way to append or read.

What must not break here: a stored byte is never rewritten; an append either happened at the
sequence it expected or raised; nothing in this package imports another package of the project.
"""
