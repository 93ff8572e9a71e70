"""What a tool is: a name, a schema, a promise about repetition, and one coroutine.

Specification: tools.md section 1. A tool never raises for a failed call; it returns a
:class:`ToolOutput` with ``is_error``. Only cancellation passes through.
"""

from __future__ import annotations

from enum import Enum
from typing import NamedTuple, Protocol

from msgspec import Struct

from events.plan import RunPlan
from events.vocabulary import CallWaiting, Event
from replay.state import State


class Repeat(Enum):
    """What recovery may do with a call that was started and has no recorded result.

    ``SAFE``: run it again. ``OWN_STORE``: run it again with ``CallContext.recovering_since``
    set; the tool finds its own earlier effect in our log by ``effect_id`` and reuses it.
    ``UNSAFE``: never run again; the model is told that the outcome is unknown.
    """

    SAFE = "safe"
    OWN_STORE = "own_store"
    UNSAFE = "unsafe"


class ToolOutput(NamedTuple):
    """A result. ``events`` are facts of the call that stand before it in the journal."""

    text: str
    is_error: bool = False
    events: tuple[Event, ...] = ()


class Deferred(NamedTuple):
    """No result yet: ``waiting`` says where it will come from (``replay/machine.py`` closes it).

    ``events`` are committed together with it, before anybody can answer.
    """

    waiting: CallWaiting
    events: tuple[Event, ...] = ()


class CallContext(Struct, frozen=True, kw_only=True):
    """Who calls, and under which identity the effect is recorded.

    ``effect_id`` is stable over crashes: ``<run_id>.<n of the tool_call event>``.
    ``recovering_since`` is unix nanoseconds when the call may have run before, else None.
    ``call_n`` is the number of the call's event, ``tool_use_id`` what the model named it.
    ``hosts`` were granted to this call by a hook. ``state`` is the run's fold: read it only.
    ``provider``/``model`` are those serving the run now; ``used_tokens`` those of its last turn.
    """

    run_id: str
    session_id: str
    agent_id: str
    tenant: str
    user_id: str
    user_tier: str
    effect_id: str
    plan: RunPlan
    started_ns: int
    now_ns: int
    recovering_since: int | None = None
    provider: str = ""
    model: str = ""
    used_tokens: int = 0
    caller_hosts: tuple[str, ...] | None = None
    web_search_filter: str = ""
    call_n: int = 0
    tool_use_id: str = ""
    hosts: tuple[str, ...] = ()
    state: State | None = None


class Tool(Protocol):
    """``input_schema`` is JSON Schema text; ``side_effect_class`` is that of tools.md 3.12."""

    @property
    def name(self) -> str: ...

    @property
    def description(self) -> str: ...

    @property
    def input_schema(self) -> bytes: ...

    @property
    def repeat(self) -> Repeat: ...

    @property
    def side_effect_class(self) -> str: ...

    async def call(self, input_json: bytes, context: CallContext) -> ToolOutput | Deferred: ...
