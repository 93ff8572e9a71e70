"""The view of interrupts: one row for each question that a run asked a person, and its answer."""

from projections.interrupts.fold import PROJECTION

__all__ = ["PROJECTION"]
