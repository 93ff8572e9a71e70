"""The view of sessions: one row for each, written by the first run that names it."""

from projections.sessions.fold import PROJECTION

__all__ = ["PROJECTION"]
