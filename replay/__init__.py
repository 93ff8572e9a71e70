"""Pure replay: state from events, next effect from state. Sans-I/O.

What must not break here: no clock, no randomness, no network, no file, no await; the same
events always give the same state, the same request and the same next effect.
"""
