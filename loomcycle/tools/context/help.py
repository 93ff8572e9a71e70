"""Operation ``help`` of Context: the index of topics, or one topic."""

from __future__ import annotations

from collections.abc import Mapping

from loomcycle.help.topics import Topic
from loomcycle.tools.base import CallContext, ToolOutput
from loomcycle.tools.context.request import ContextInput, Operation, answer, refuse

HINT = "Call help again with topic set to one of these names."


def operations(topics: Mapping[str, Topic]) -> dict[str, Operation]:
    index = [
        {"name": topic.name, "description": topic.description, "source": topic.source}
        for _, topic in sorted(topics.items())
    ]

    async def tell(request: ContextInput, context: CallContext) -> ToolOutput:
        name = request.topic
        if not name:
            return answer({"topics": index, "count": len(index), "hint": HINT})
        topic = topics.get(name)
        if topic is None:
            return refuse("help", f'unknown topic "{name}" (topics: {", ".join(sorted(topics))})')
        return answer(topic)

    return {"help": tell}
