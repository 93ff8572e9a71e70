"""The view of runs: who, what, how it ended, what it used, who owns it and what it waits for."""

from projections.runs.fold import PROJECTION

__all__ = ["PROJECTION"]
