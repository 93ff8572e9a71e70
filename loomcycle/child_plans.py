"""What a child will be: its own definition, within what its parent may (tools.md section 3.10).

Tools, model, prompt and limits are the child's own; volumes are never more than the parent's,
and the parent's compaction settings win over the definition's, except for a model that the
child's provider does not serve.
"""

from __future__ import annotations

from collections.abc import Mapping

from msgspec.structs import replace

from events.plan import Compaction
from loomcycle.definitions import Definitions, Resolved
from loomcycle.errors import InvalidArgument, UnknownAgent
from loomcycle.loading import Plans
from loomcycle.planning import Narrowing
from loomcycle.volumes import DeclaredVolume, bind_child
from replay.children import Spawn
from replay.state import State


class ChildPlanner:
    """``volumes`` are those that the deployment declares."""

    def __init__(
        self, definitions: Definitions, volumes: Mapping[str, DeclaredVolume], plans: Plans
    ) -> None:
        self._definitions = definitions
        self._volumes = volumes
        self._plans = plans

    async def resolve(self, parent: State, spawn: Spawn) -> Resolved:
        """The plan of a child of ``parent``. Raises CommandError, LogError."""
        facts = parent.started
        try:
            agent = self._definitions.agent(spawn.name, facts.tenant)
        except UnknownAgent:
            raise UnknownAgent(f'unknown sub-agent "{spawn.name}"', "name") from None
        if spawn.def_id:
            raise InvalidArgument(f'no such agent definition: "{spawn.def_id}"', "def_id")
        settings = parent.plan.compaction
        narrowing = Narrowing(
            user_tier=facts.user_tier,
            compaction=spawn.compaction,
            inherited=settings if settings != Compaction() else None,
            inherited_from=parent.plan.provider if settings.model else "",
        )
        try:
            own = await self._definitions.resolve(spawn.name, facts.tenant, narrowing)
        except OSError as cause:
            raise InvalidArgument(f"its program cannot be read: {cause.strerror}", "name") from None
        volumes = bind_child(parent.plan.volumes, agent.volumes, self._volumes)
        if volumes == own.plan.volumes:
            return own
        plan = replace(own.plan, volumes=volumes)
        return Resolved(plan, await self._plans.put(plan), own.system_prompt)
