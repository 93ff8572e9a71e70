"""Judgements of runs: who may give them, where they are kept, what they amount to (tools.md 3.14).

What must not break: a submission is stored once, whatever crashes and however often it is
repeated; its role is derived and never claimed; no tenant sees or judges another's runs.
"""
