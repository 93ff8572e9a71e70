"""Judgements of runs: who may give them, where they are kept, and what they amount to.

An evaluation never changes a run or a definition; what becomes of it is people's business.
"""
