"""Hooks around the calls of one run: what they are shown, and what their verdicts are as events.

It reads the run's journal and stages nothing; ``tool_turn.py`` says when. A deployment without
hooks is told so by one look at ``HookChain.any``.
"""

from __future__ import annotations

import msgspec
from msgspec import UNSET, Raw, Struct

from events.vocabulary import CallPrepared, Event, HostWidened, HostWideningBody
from loomcycle.call_input import given_input
from loomcycle.hooks.chain import HookChain, HookedCall, Verdict
from loomcycle.journal import RunJournal
from loomcycle.masking import plain_input
from loomcycle.tools.base import ToolOutput
from replay import approval
from replay.state import Call


class RunHooks:
    """The hooks of a run whose journal this worker writes; ``chain`` None: there are none."""

    def __init__(self, chain: HookChain | None, journal: RunJournal) -> None:
        self._chain = chain
        self._journal = journal

    def are_due(self, call: Call) -> bool:
        """Whether hooks want to see what the call would run with, and have not yet."""
        chain = self._chain
        if chain is None or not chain.any or approval.is_prepared(call):
            return False
        facts = self._journal.state.started
        return chain.guards(facts.tenant, facts.agent, call.name)

    async def before(self, call: Call) -> Verdict:
        """Ask; only when they are due."""
        if self._chain is None:
            return Verdict()
        return await self._chain.before(self._shown(call, given_input(call, self._journal)))

    async def after(self, call: Call, output: ToolOutput) -> ToolOutput:
        """The result as the hooks behind the call leave it. They see the model's own input."""
        if self._chain is None or not self._chain.any:
            return output
        shown = self._shown(call, plain_input(call, self._journal))
        return await self._chain.after(shown, output)

    def decided(self, call: Call, verdict: Verdict) -> list[Event]:
        """What a verdict is in the journal, before anything follows from it."""
        edit = approval.edit_of(call) is not None and call.waiting is not None
        given = verdict.input
        if given is None and edit:
            given = Raw(given_input(call, self._journal))
        denied = verdict.denied
        events: list[Event] = [
            CallPrepared(
                tool_use_id=call.id,
                edit_of=call.waiting.ref if edit and call.waiting is not None else "",
                input=UNSET if given is None else given,
                denied=None if denied is None else denied.text,
                denied_is_error=denied is not None and denied.is_error,
                hosts=verdict.hosts,
                notes=tuple(verdict.notes),
            )
        ]
        if verdict.hosts:
            data = given_input(call, self._journal) if given is None else bytes(given)
            owner, name = verdict.granted_by
            widening = HostWideningBody(
                tool_call_id=call.id,
                tool_name=call.name,
                url=_url(data),
                hook_owner=owner,
                hook_name=name,
                hosts_added=verdict.hosts,
            )
            events.append(HostWidened(host_widening=widening))
        return events

    def _shown(self, call: Call, given: bytes) -> HookedCall:
        facts = self._journal.state.started
        return HookedCall(
            tenant=facts.tenant,
            agent=facts.agent,
            user_id=facts.user_id,
            agent_id=facts.agent_id,
            tool_use_id=call.id,
            tool=call.name,
            input=given,
        )


class _WithUrl(Struct):
    url: str = ""


def _url(given: bytes) -> str:
    """The ``url`` of a call's arguments, "" when they have none."""
    try:
        return msgspec.json.decode(given, type=_WithUrl).url
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return ""
