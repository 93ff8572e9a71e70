"""Model names in a vendor's listing."""

from __future__ import annotations

from loomcycle.providers.base import ProviderError
from loomcycle.providers.transport import Transport


async def list_names(transport: Transport, path: str, items: str, field: str) -> list[str]:
    """``items[*][field]`` of the JSON object at ``path``; a null list is an empty one.

    Raises :class:`ProviderError` when the vendor does not answer so.
    """
    listing = await transport.get_json(path)
    entries = listing.get(items, ...) if isinstance(listing, dict) else ...
    if entries is None:
        return []
    if not isinstance(entries, list):
        name = transport.endpoint.name
        raise ProviderError(f"{name}: unreadable model listing (no list {items!r} in it)")
    names = [entry.get(field) for entry in entries if isinstance(entry, dict)]
    return [name for name in names if isinstance(name, str) and name]
