"""Model names in a vendor's listing."""

from __future__ import annotations

from typing import Any

from loomcycle.providers.base import ProviderError


def names_in(listing: Any, items: str, field: str) -> list[str]:
    """``listing[items][*][field]``; raises :class:`ProviderError` when ``items`` is no list."""
    entries = listing.get(items) if isinstance(listing, dict) else None
    if entries is None and isinstance(listing, dict) and items in listing:
        return []
    if not isinstance(entries, list):
        raise ProviderError(f"model listing has no list {items!r}")
    names = [entry.get(field) for entry in entries if isinstance(entry, dict)]
    return [name for name in names if isinstance(name, str) and name]
