"""The view of transcripts: one row for each public event, in the order of ``seq``."""

from projections.transcripts.fold import PROJECTION

__all__ = ["PROJECTION"]
