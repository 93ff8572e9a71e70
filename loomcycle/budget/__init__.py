"""Budgets of runs and their children: prices, the ledger of a tree, reservations on it.

No model call of a budgeted tree begins before its reservation is in the log, so calls on many
replicas cannot overrun a limit together. Runs without a budget never come here.
"""
