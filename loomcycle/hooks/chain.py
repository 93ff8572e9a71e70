"""The chain of hooks around one tool call: what is sent, what answers mean, who goes first.

Specification: hooks.md sections 4 to 6. Hooks are asked one after another, before the call in
the order of their registration, after it in reverse. Nothing is staged here: ``tool_turn.py``
commits a verdict before it acts on it.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

import msgspec
from msgspec import UNSET, Raw, Struct, UnsetType

from events.hooks import HookRegistered
from events.vocabulary import CallReviewed
from loomcycle.hooks.client import HookClient, HookFailed
from loomcycle.hooks.registry import HookRegistry
from loomcycle.tools.base import ToolOutput

log = logging.getLogger("loomcycle.hooks")


class HookedCall(Struct, frozen=True, kw_only=True):
    """A call as hooks see it: names and input without masks."""

    tenant: str
    agent: str
    user_id: str
    agent_id: str
    tool_use_id: str
    tool: str
    input: bytes


@dataclass
class Verdict:
    """What the hooks before a call decided. ``input`` None: as it was. ``hosts``: see section 6.

    ``denied`` is the result of a call that must not run; then no host is granted.
    """

    input: Raw | None = None
    denied: ToolOutput | None = None
    hosts: tuple[str, ...] = ()
    granted_by: tuple[str, str] = ("", "")
    notes: list[str] = field(default_factory=list)


class _Result(Struct, frozen=True):
    text: str | None = None
    is_error: bool | None = None


class _PreAnswer(Struct, frozen=True):
    input: Raw | UnsetType = UNSET
    deny: _Result | None = None
    allow_hosts: tuple[str | None, ...] | None = None


class _PostAnswer(Struct, frozen=True):
    result: _Result | None = None


class _ToolCall(Struct, frozen=True):
    id: str
    name: str
    input: Raw


class _ToolResult(Struct, frozen=True, omit_defaults=True):
    text: str
    is_error: bool | None = None


class _Question(Struct, frozen=True, omit_defaults=True, kw_only=True):
    phase: str
    owner: str
    hook_name: str
    agent: str
    user_id: str = ""
    agent_id: str = ""
    tool_call: _ToolCall
    tool_result: _ToolResult | None = None


_A = TypeVar("_A")

_encode = msgspec.json.Encoder().encode
_pre_answer: msgspec.json.Decoder[_PreAnswer | None] = msgspec.json.Decoder(_PreAnswer | None)
_post_answer: msgspec.json.Decoder[_PostAnswer | None] = msgspec.json.Decoder(_PostAnswer | None)


class HookChain:
    """``permitted``: owners, ``owner`` or ``tenant:owner``, who may grant hosts to a call."""

    def __init__(
        self, registry: HookRegistry, client: HookClient, permitted: Iterable[str] = ()
    ) -> None:
        self._registry = registry
        self._client = client
        self._permitted = {_permission(entry) for entry in permitted}

    @property
    def any(self) -> bool:
        """Whether there is any hook at all."""
        return self._registry.any

    def guards(self, tenant: str, agent: str, tool: str) -> bool:
        """Whether a hook wants to be asked before such a call."""
        return bool(self._registry.matching("pre", tenant, agent, tool))

    async def before(self, call: HookedCall) -> Verdict:
        """Ask the hooks before a call."""
        verdict = Verdict()
        for hook in self._registry.matching("pre", call.tenant, call.agent, call.tool):
            given = call if verdict.input is None else _with_input(call, verdict.input)
            try:
                answer = await self._ask(hook, given, None, _pre_answer)
            except HookFailed as cause:
                if hook.fail_mode == "open":
                    verdict.notes.append(f"{_named(hook)} failed and was passed over: {cause}")
                    continue
                verdict.notes.append(f"{_named(hook)} failed and closed: {cause}")
                text = f"tool_call denied: hook {_named(hook)} unavailable"
                return Verdict(denied=ToolOutput(text, True), notes=verdict.notes)
            if answer is None:
                continue
            if answer.deny is not None:
                verdict.notes.append(f"{_named(hook)} denied")
                return Verdict(denied=_output(answer.deny), notes=verdict.notes)
            if answer.input is not UNSET and bytes(answer.input) != b"null":
                verdict.input = answer.input.copy()
                verdict.notes.append(f"{_named(hook)} rewrote the input")
            self._grant(verdict, hook, answer.allow_hosts or ())
        return verdict

    async def after(self, call: HookedCall, output: ToolOutput) -> ToolOutput:
        """The result as the hooks after the call leave it, with a note if they changed it."""
        notes: list[str] = []
        current = output
        hooks = self._registry.matching("post", call.tenant, call.agent, call.tool)
        for hook in reversed(hooks):
            try:
                answer = await self._ask(hook, call, current, _post_answer)
            except HookFailed as cause:
                if hook.fail_mode == "open":
                    notes.append(f"{_named(hook)} failed and was passed over: {cause}")
                    continue
                notes.append(f"{_named(hook)} failed and closed: {cause}")
                text = f"tool_result discarded: hook {_named(hook)} unavailable"
                current = ToolOutput(text, True)
                break
            if answer is not None and answer.result is not None:
                current = _output(answer.result)
                notes.append(f"{_named(hook)} replaced the result")
        if not notes:
            return output
        reviewed = CallReviewed(tool_use_id=call.tool_use_id, notes=tuple(notes))
        return ToolOutput(current.text, current.is_error, (*output.events, reviewed))

    async def _ask(
        self,
        hook: HookRegistered,
        call: HookedCall,
        output: ToolOutput | None,
        decoder: msgspec.json.Decoder[_A],
    ) -> _A | None:
        """The hook's answer, None when it changes nothing. Raises HookFailed."""
        try:
            data = await self._client.post(
                hook.callback_url, _encode(_question(hook, call, output)), hook.timeout_ms
            )
            answer = _answer(data, decoder)
        except HookFailed as cause:
            log.warning("%s (%s): %s", _named(hook), hook.phase, cause)
            raise
        return answer

    def _grant(self, verdict: Verdict, hook: HookRegistered, allowed: Sequence[str | None]) -> None:
        hosts = [
            host for name in allowed if (host := (name or "").strip().lower()) not in ("", ".")
        ]
        if not hosts:
            return
        if (hook.tenant, hook.owner) not in self._permitted:
            log.warning("%s may not allow hosts: they are dropped", _named(hook))
            verdict.notes.append(f"{_named(hook)} may not allow hosts")
            return
        verdict.hosts = tuple(dict.fromkeys((*verdict.hosts, *hosts)))
        verdict.granted_by = (hook.owner, hook.name)
        verdict.notes.append(f"{_named(hook)} allowed hosts")


def _question(hook: HookRegistered, call: HookedCall, output: ToolOutput | None) -> _Question:
    result = None if output is None else _ToolResult(output.text, output.is_error or None)
    return _Question(
        phase=hook.phase,
        owner=hook.owner,
        hook_name=hook.name,
        agent=call.agent,
        user_id=call.user_id,
        agent_id=call.agent_id,
        tool_call=_ToolCall(call.tool_use_id, call.tool, Raw(call.input)),
        tool_result=result,
    )


def _answer(data: bytes, decoder: msgspec.json.Decoder[_A]) -> _A | None:
    """Raises HookFailed."""
    if not data.strip():
        return None
    try:
        data.decode()  # the decoder passes a rewritten input through as it is
        return decoder.decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        raise HookFailed("the answer is not the JSON of an answer") from None


def _output(given: _Result) -> ToolOutput:
    return ToolOutput(given.text or "", bool(given.is_error))


def _with_input(call: HookedCall, given: Raw) -> HookedCall:
    return msgspec.structs.replace(call, input=bytes(given))


def _named(hook: HookRegistered) -> str:
    return f"{hook.owner}/{hook.name}"


def _permission(entry: str) -> tuple[str, str]:
    """(tenant, owner) of an entry of the operator's list."""
    tenant, colon, owner = entry.partition(":")
    return (tenant, owner) if colon else ("", entry)
