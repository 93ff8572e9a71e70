"""Operation ``evaluations`` of Context: statistics of a definition's evaluations."""

from __future__ import annotations

from loomcycle.evaluations.errors import EvaluationsUnavailable
from loomcycle.evaluations.store import Evaluations
from loomcycle.tools.base import CallContext, ToolOutput
from loomcycle.tools.context.request import ContextInput, Operation, answer, missing, refuse


def operations(store: Evaluations) -> dict[str, Operation]:
    async def evaluations(request: ContextInput, context: CallContext) -> ToolOutput:
        if not request.def_id:
            return missing("evaluations", "def_id")
        lineage = bool(request.include_lineage)
        try:
            found = await store.aggregate(context.tenant, request.def_id, lineage=lineage)
        except EvaluationsUnavailable as failure:
            return refuse("evaluations", failure.reason)
        return answer(found)

    return {"evaluations": evaluations}
