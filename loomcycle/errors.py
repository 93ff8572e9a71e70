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


class ProviderUnknown(CommandError):
    """No provider has this id."""

    code = "provider_unknown"


class ProviderUnavailable(CommandError):
    """The provider is known, but nothing to call it with is configured."""

    code = "provider_unavailable"


class ProviderListFailed(CommandError):
    """The provider did not list its models."""

    code = "provider_list_failed"


class SessionNotFound(CommandError):
    code = "session_not_found"

    def __init__(self, session_id: str) -> None:
        super().__init__(f"session not found: {session_id}")


class SessionBusy(CommandError):
    code = "session_busy"

    def __init__(self, session_id: str) -> None:
        super().__init__(f'another request is in flight on session "{session_id}"')


class SessionDamaged(CommandError):
    """What an earlier run of the session said cannot be read; ``reason`` names the place."""

    code = "session_damaged"

    def __init__(self, session_id: str, reason: str) -> None:
        super().__init__(f'session "{session_id}" cannot be continued: {reason}')


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


class Unprocessable(InvalidArgument):
    """The request is well formed and cannot be done: ``field`` says what of it is wrong."""

    code = "unprocessable"


class NotSteerable(CommandError):
    """Nobody can say anything to this run: unknown, ended, or a sub-agent's."""

    code = "not_steerable"

    def __init__(self) -> None:
        super().__init__("no in-flight run for that run_id")


class InboxFull(CommandError):
    """The run has not read what was said before."""

    code = "inbox_full"

    def __init__(self) -> None:
        super().__init__("the run has too many unread inputs: wait until it has taken some")


class InterruptNotFound(CommandError):
    code = "interrupt_not_found"

    def __init__(self) -> None:
        super().__init__("interrupt not found")


class InterruptSettled(CommandError):
    """Somebody else answered first, or no answer is wanted any more."""

    code = "interrupt_settled"


class InterruptExpired(CommandError):
    code = "interrupt_expired"

    def __init__(self) -> None:
        super().__init__("interrupt expired")


class RuntimePaused(CommandError):
    """Nothing new is started while the runtime is pausing or paused."""

    code = "runtime_paused"

    def __init__(self) -> None:
        super().__init__("the runtime is paused: nothing new starts until it is resumed")


class AlreadyPausing(CommandError):
    code = "already_pausing"

    def __init__(self, state: str) -> None:
        super().__init__(f"already_pausing: the runtime is {state}")


class NotPaused(CommandError):
    code = "not_paused"

    def __init__(self, state: str) -> None:
        super().__init__(f"not_paused: the runtime is {state}")


class PauseFailed(CommandError):
    """``code`` says what failed: ``pause_failed``, ``resume_failed`` or ``state_failed``."""

    def __init__(self, code: str, cause: Exception) -> None:
        super().__init__(f"the log or a view did not answer: {cause}")
        self.code = code


class InvalidRegistration(CommandError):
    """A hook cannot be registered like this."""

    code = "invalid_registration"

    def __init__(self, reason: str) -> None:
        super().__init__(f"connector: invalid hook registration: {reason}")


class HookNotFound(CommandError):
    code = "not_found"

    def __init__(self, hook_id: str) -> None:
        super().__init__(f'no hook with id "{hook_id}"')


class NoRunForId(CommandError):
    code = "run_not_found"

    def __init__(self) -> None:
        super().__init__("no run for that run_id")


class RunBusy(CommandError):
    """The run is live and does not wait for a person."""

    code = "run_busy"

    def __init__(self) -> None:
        super().__init__("the run is busy: compact it while it waits for input, or after its end")


class AgentGone(CommandError):
    """The definition of a run's agent does not exist any more."""

    code = "agent_gone"

    def __init__(self, agent: str) -> None:
        super().__init__(f'agent "{agent}" is not defined any more')


class LaterRuns(CommandError):
    """The conversation went on in later runs: compact the last one."""

    code = "later_runs"

    def __init__(self) -> None:
        super().__init__("the conversation went on in a later run: compact that one")


class BudgetSpent(CommandError):
    """A model call does not fit the budget."""

    code = "budget_exceeded"


class SummaryFailed(CommandError):
    """The model wrote no summary."""

    code = "summary_failed"


class SummaryUnavailable(CommandError):
    """No model can be asked for a summary now."""

    code = "summary_unavailable"
