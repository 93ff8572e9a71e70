"""Simulated clusters: real workers over the log in memory, in virtual time, from one seed.

What must not break here: the same seed gives the same trace, on every machine; nothing waits for
real time; the code under test is the product's own, only the log, the model and the clients are
of the simulation.
"""
