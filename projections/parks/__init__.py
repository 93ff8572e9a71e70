"""The view of parked runs: what each waits for, and what has come since it was let go."""

from projections.parks.fold import PROJECTION

__all__ = ["PROJECTION"]
