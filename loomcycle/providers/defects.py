"""The last resort behind drivers: what one raises against its contract is a failed call.

Its text belongs to no class that is retried or fallen back from: the same bytes would meet the
same defect, and each call is paid for. What the exception says may hold a key and is not told.
"""

from __future__ import annotations

import logging
import traceback
from collections.abc import AsyncGenerator
from contextlib import aclosing

from loomcycle.providers.base import (
    Delta,
    Provider,
    ProviderError,
    ProviderNotConfigured,
    RetryDelta,
)
from replay.conversation import ModelRequest

log = logging.getLogger(__name__)


async def contained(provider: Provider, request: ModelRequest) -> AsyncGenerator[Delta, None]:
    """``provider.stream(request)`` that raises nothing but what its contract allows."""
    begun = False
    try:
        async with aclosing(provider.stream(request)) as deltas:
            async for delta in deltas:
                begun = begun or not isinstance(delta, RetryDelta)
                yield delta
    except (ProviderError, ProviderNotConfigured):
        raise
    except Exception as cause:
        kind = type(cause).__name__
        places = "".join(traceback.format_tb(cause.__traceback__))
        log.error("%s: the driver failed: %s\n%s", provider.id, kind, places)
        raise ProviderError(f"{provider.id}: the driver failed ({kind})", partial=begun) from None
