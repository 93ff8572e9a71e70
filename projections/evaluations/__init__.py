"""The view of evaluations: what was judged, by whom, and the statistics of it."""

from projections.evaluations.fold import PROJECTION

__all__ = ["PROJECTION"]
