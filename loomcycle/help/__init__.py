"""Texts that explain the runtime to the agents that live in it (``Context`` op ``help``)."""
