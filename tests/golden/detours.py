"""Shapes of journals off the straight way: compactions, retries, fallbacks, limits, repairs."""

from __future__ import annotations

from pathlib import Path

from loomcycle.auth import OPEN
from tests.golden.stage import Export, MakeIn, MakeOn, Stage, asks_for, open_stage, shown
from tests.wire.vendors import (
    FakeVendor,
    Reply,
    anthropic_events,
    anthropic_text,
    anthropic_tool_call,
    json_reply,
    openai_text,
    sse,
)

FULL = 190_000
"""Tokens of a turn that fills a window of 200 000 beyond 80 %."""

TIERED = {"/v1/models": ["m-1"], "/deepseek/models": ["deepseek-reasoner", "deepseek-chat"]}


def keep(call_id: str, key: str, tokens: int = 10) -> Reply:
    value = {"op": "set", "scope": "user", "key": key, "value": 1}
    return anthropic_tool_call("Memory", value, call_id=call_id, input_tokens=tokens)


def thoughtful() -> Reply:
    """A turn that reasons and asks who it is."""
    thought = {"type": "thinking", "thinking": "Who am I?", "signature": "c2lnbmVk"}
    look = {"type": "tool_use", "id": "toolu_1", "name": "Context", "input": {"op": "self"}}
    return Reply([sse(*anthropic_events([thought, look], stop_reason="tool_use"))])


def busy() -> Reply:
    return Reply([b"busy"], status=503)


async def compacted(stage: Stage) -> str:
    """The window was nearly full: a summary stands in the place of the older part."""
    stage.vendor.script(
        keep("t1", "c1"),
        keep("t2", "c2", FULL),
        anthropic_text("Two of three are kept.", input_tokens=77),
        keep("t3", "c3"),
        anthropic_text("All kept."),
    )
    return (await stage.run("compact", "Keep three.")).run_id


async def not_compacted(stage: Stage) -> str:
    """The summary failed, then it was blank: the run goes on with all that was said."""
    stage.vendor.script(
        keep("t1", "c1"),
        keep("t2", "c2", FULL),
        json_reply({"error": {"type": "api_error", "message": "no"}}, status=500),
        keep("t3", "c3", FULL),
        anthropic_text("  "),
        anthropic_text("All kept."),
    )
    return (await stage.run("compact", "Keep three.")).run_id


async def compacted_by_itself(stage: Stage) -> str:
    """A model that asked for a compaction."""
    stage.vendor.script(
        anthropic_tool_call("Context", {"op": "compact"}, text="Too much."),
        anthropic_text("All I know."),
        anthropic_text("Done."),
    )
    return (await stage.run("forgetful")).run_id


async def compacted_by_hand(stage: Stage) -> str:
    """An interactive run that was compacted while it waited, and then went on and was ended."""
    stage.vendor.script(*(anthropic_text(f"Answer {i}.") for i in range(3)))
    run = await stage.start("compact", "Question 0.", interactive=True)
    await shown(run, "awaiting_input")
    for i in (1, 2):
        await stage.say(run, f"Question {i}.")
        await shown(run, "awaiting_input")
    await stage.parked(run)
    stage.vendor.script(anthropic_text("We talked."), anthropic_text("Answer 3."))
    await stage.runtime.compactions.compact(OPEN, run.run_id)
    await stage.say(run, "Question 3.")
    await shown(run, "awaiting_input")
    await stage.cancel(run, "enough")
    await stage.ended(run.run_id)
    return run.run_id


async def compacted_after_its_end(stage: Stage) -> str:
    """A marker behind the end of a run, for those who continue its session."""
    stage.vendor.script(keep("t1", "c1"), keep("t2", "c2"), anthropic_text("Both kept."))
    run = await stage.run("compact", "Keep two.")
    stage.vendor.script(anthropic_text("Two were kept."))
    await stage.runtime.compactions.compact(OPEN, run.run_id)
    return run.run_id


async def continued_from_a_summary(stage: Stage) -> str:
    """The next run of a session that was compacted after a run's end."""
    stage.vendor.script(keep("t1", "c1"), keep("t2", "c2"), anthropic_text("Both kept."))
    run = await stage.run("compact", "Keep two.")
    stage.vendor.script(anthropic_text("Two were kept."), anthropic_text("Two."))
    await stage.runtime.compactions.compact(OPEN, run.run_id)
    return (await stage.go_on(run, "How many?")).run_id


async def retried(stage: Stage) -> str:
    """The same pair again after each failure: a wait, a broken stream, then an answer."""
    broken = anthropic_events([{"type": "text", "text": "Half a sen\n"}])[:3]
    stage.vendor.script(busy(), Reply([sse(*broken)]), anthropic_text("Whole."))
    return (await stage.run("thinker", user_tier="trying")).run_id


async def fallen_back(stage: Stage) -> str:
    """Another provider goes on: its sibling model, without the reasoning of the first."""
    await stage.listed(TIERED)
    rest = openai_text("Done.")
    stage.vendor.script(thoughtful(), busy(), rest)
    return (await stage.run("tiered", user_tier="falling")).run_id


async def over_budget(stage: Stage) -> str:
    """The next call does not fit the budget: it is not made."""
    stage.vendor.script(keep("t1", "b1", 4900))
    return (await stage.run("limited")).run_id


async def within_budget(stage: Stage) -> str:
    """Answers and a summary as long as the budget still lets them be."""
    stage.vendor.script(
        anthropic_tool_call("Context", {"op": "compact"}, text="Too much."),
        anthropic_text("All I know."),
        anthropic_text("Done."),
    )
    return (await stage.run("frugal")).run_id


async def output_repaired(stage: Stage) -> str:
    """A final answer that does not fit the schema, and the one that does."""
    stage.vendor.script(openai_text("Ann"), openai_text('{"name": "Ann"}'))
    return (await stage.run("strict")).run_id


async def output_rejected(stage: Stage) -> str:
    """Two final answers that do not fit the schema."""
    stage.vendor.script(openai_text("Ann"), openai_text('{"name": 1}'))
    return (await stage.run("strict")).run_id


async def repaired_at_the_cap(stage: Stage) -> str:
    """The answer of the last permitted turn does not fit: the repair is allowed beyond it."""
    stage.vendor.script(openai_text("Ann"), openai_text('{"name": "Ann"}'))
    return (await stage.run("strict-once")).run_id


async def unanswered_at_the_cap(stage: Stage) -> str:
    """The repair was spent on a tool: there is no valid answer at the cap."""
    value = {"op": "set", "scope": "user", "key": "u", "value": 1}
    stage.vendor.script(openai_text("Ann"), asks_for(("call_u", "Memory", value)))
    return (await stage.run("strict-once")).run_id


ON_ONE_STAGE: tuple[MakeOn, ...] = (
    compacted,
    not_compacted,
    compacted_by_itself,
    compacted_by_hand,
    compacted_after_its_end,
    continued_from_a_summary,
    retried,
    fallen_back,
    over_budget,
    within_budget,
    output_repaired,
    output_rejected,
    repaired_at_the_cap,
    unanswered_at_the_cap,
)


async def not_fallen_back(directory: Path, vendor: FakeVendor, export: Export) -> None:
    """A deployment that stays with the provider that answered first."""
    latched = {"LOOMCYCLE_FALLBACK_PIN_AFTER_SUCCESS": "1"}
    async with open_stage(directory, vendor, name="not_fallen_back", variables=latched) as stage:
        await stage.listed(TIERED)
        vendor.script(thoughtful(), busy())
        run = await stage.run("tiered", user_tier="falling")
        await export(stage.runtime.store, run.run_id)


IN_A_DIRECTORY: tuple[MakeIn, ...] = (not_fallen_back,)
