"""Errors that callers of a command can act on. Codes are stable; gateways map them to statuses."""

from __future__ import annotations


class CommandError(Exception):
    """Base: ``code`` is stable snake_case, ``str(error)`` is for people."""

    code = "internal"


class InvalidArgument(CommandError):
    """The request cannot be right; ``field`` is the path of what is wrong."""

    code = "invalid_argument"

    def __init__(self, message: str, field: str = "") -> None:
        super().__init__(message)
        self.field = field


class UnknownAgent(InvalidArgument):
    code = "unknown_agent"


class ModelUnavailable(CommandError):
    """No candidate of the requested tier (or pin) can be used now."""

    code = "model_unavailable"


class SessionNotFound(CommandError):
    code = "session_not_found"

    def __init__(self, session_id: str) -> None:
        super().__init__(f"session not found: {session_id}")


class SessionBusy(CommandError):
    code = "session_busy"

    def __init__(self, session_id: str) -> None:
        super().__init__(f'another request is in flight on session "{session_id}"')


class RunNotFound(CommandError):
    code = "run_not_found"

    def __init__(self) -> None:
        super().__init__("no such run")


class UnknownAgentId(CommandError):
    code = "unknown_agent_id"

    def __init__(self, agent_id: str) -> None:
        super().__init__(f'no run has agent_id "{agent_id}"')


class AgentIdInUse(CommandError):
    code = "agent_id_in_use"

    def __init__(self, agent_id: str) -> None:
        super().__init__(f'agent_id "{agent_id}" is in use by a live run')


class Backpressure(CommandError):
    """The start queue is full, or the start waited too long."""

    code = "backpressure"


class UserQuotaExhausted(CommandError):
    code = "per_user_quota_exhausted"

    def __init__(self, user_id: str, cap: int) -> None:
        super().__init__(f"per-user quota exhausted: user={user_id} cap={cap}")
        self.user_id, self.cap = user_id, cap


class LogAway(CommandError):
    """The log cannot be reached or takes nothing; ``retry_after_s`` is a hint."""

    code = "log_unavailable"

    def __init__(self, message: str, retry_after_s: int = 1) -> None:
        super().__init__(message)
        self.retry_after_s = retry_after_s


class ViewAway(CommandError):
    """A view is being rebuilt or cannot be read now."""

    code = "view_unavailable"
    retry_after_s = 1
