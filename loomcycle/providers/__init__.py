"""Model vendors behind one interface (``base.py``); the mock is an ordinary provider.

What must not break here: a driver maps requests and streams, it never decides retries across
providers, never touches the log, and never lets a key appear in an error.
"""
