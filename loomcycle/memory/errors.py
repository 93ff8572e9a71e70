"""Why a memory operation did not happen. Texts are shown to agents and never hold a value."""

from __future__ import annotations


class MemoryRefused(Exception):
    """The operation would break a rule; nothing was stored.

    ``code`` is that of memory.md section 13. ``bare`` reasons are shown as they are; all others
    after the operation's name.
    """

    def __init__(self, reason: str, code: str = "refused", *, bare: bool = False) -> None:
        super().__init__(reason)
        self.reason = reason
        self.code = code
        self.bare = bare


class MemoryUnavailable(Exception):
    """The log could not be read or written in time; ``reason`` says what is known."""

    code = "unavailable"

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason
