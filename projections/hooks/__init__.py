"""The view of registered hooks, in the order of their chain."""

from projections.hooks.fold import PROJECTION

__all__ = ["PROJECTION"]
