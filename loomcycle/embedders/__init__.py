"""Embedding models behind one interface (``base.py``); the stub is an ordinary embedder.

What must not break here: vectors come back in the order of the texts, are float32 and of one
length, and no error holds a key. Specification: providers.md section 8.
"""
