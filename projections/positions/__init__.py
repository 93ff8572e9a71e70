"""The tables that every set of views has: versions, vocabulary and positions."""
