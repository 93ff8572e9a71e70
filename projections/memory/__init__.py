"""The view of memory rows, as the last write of each key left them."""

from projections.memory.fold import PROJECTION

__all__ = ["PROJECTION"]
