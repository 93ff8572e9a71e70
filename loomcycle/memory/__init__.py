"""Memory rows: a scope is the fold of its subjects in the log, written by compare-and-set.

What must not break: a write is never lost, repeated or based on rows that were not the newest;
a read shows every write that ended before it began, on every replica.
"""
