"""Shapes of journals in which people have a part: input, questions, approvals, pauses."""

from __future__ import annotations

import asyncio

from loomcycle.auth import OPEN
from tests.bench.deployment import eventually
from tests.golden.stage import (
    MakeOn,
    Stage,
    asks_for,
    finished,
    says_and,
    shown,
    spoken,
)
from tests.wire.vendors import Hold, json_reply, openai_chunk, openai_text, openai_usage, sse

ASK = ("call_q", "Interruption", {"op": "ask", "question": "Which?", "options": ["red", "blue"]})


async def talked_to(stage: Stage) -> str:
    """An interactive run that waits, parks, is said something, waits again and is cancelled."""
    stage.vendor.script(openai_text("Hello."), openai_text("Fine."))
    run = await stage.start("asker", "Hi.", interactive=True)
    await shown(run, "awaiting_input")
    await stage.parked(run)
    await stage.say(run, "How are you?")
    await shown(run, "awaiting_input")
    await stage.parked(run)
    await stage.cancel(run, "enough")
    return (await finished(run)).run_id


async def steered(stage: Stage) -> str:
    """Two inputs while the model speaks: each is a turn of its own, and the run goes on."""
    go_on = asyncio.Event()
    rest = sse(openai_chunk(finish="stop"), openai_usage(), done=True)
    first = says_and(Hold(go_on), "One moment.")
    first.parts.append(rest)
    stage.vendor.script(first, openai_text("Both done."))
    run = await stage.start("asker", "Begin.")
    await spoken(run, "One moment.")
    await stage.say(run, "First this.")
    await stage.say(run, "Then that.")
    go_on.set()
    return (await finished(run)).run_id


async def steered_at_the_cap(stage: Stage) -> str:
    """An input during the last permitted turn: one more turn answers it."""
    go_on = asyncio.Event()
    first = says_and(Hold(go_on), "One moment.")
    first.parts.append(sse(openai_chunk(finish="stop"), openai_usage(), done=True))
    stage.vendor.script(first, openai_text("Done, too."))
    run = await stage.start("once", "Begin.")
    await spoken(run, "One moment.")
    await stage.say(run, "And this.")
    go_on.set()
    return (await finished(run)).run_id


async def question_answered(stage: Stage) -> str:
    """A question beside another call: the run parks until somebody answers."""
    memory = ("call_m", "Memory", {"op": "set", "scope": "user", "key": "q", "value": 1})
    stage.vendor.script(asks_for(ASK, memory), openai_text("Red it is."))
    run = await stage.start("questioner")
    asked = (await shown(run, "interruption_pending"))["interruption"]
    await stage.parked(run)
    await stage.answer(run, asked["interrupt_id"], "red")
    return (await finished(run)).run_id


async def question_timed_out(stage: Stage) -> str:
    """Somebody is told something; then a question that nobody answers in time."""
    tell = ("call_n", "Interruption", {"op": "notify", "message": "Soon.", "priority": "high"})
    asks = {"op": "ask", "question": "Now?", "timeout_ms": 1500}
    stage.vendor.script(
        asks_for(tell), asks_for(("call_q", "Interruption", asks)), openai_text("Then not.")
    )
    return (await stage.run("questioner")).run_id


async def question_withdrawn(stage: Stage) -> str:
    """A question that another run of its user takes back."""
    stage.vendor.script(asks_for(ASK), openai_text("Never mind."))
    run = await stage.start("questioner")
    asked = (await shown(run, "interruption_pending"))["interruption"]
    await stage.parked(run)
    back = {"op": "cancel", "interruption_id": asked["interrupt_id"]}
    stage.vendor.replies.insert(0, asks_for(("call_c", "Interruption", back)))
    stage.vendor.replies.insert(1, openai_text("Taken back."))
    other = await stage.start("questioner", "Take it back.")
    await finished(run)
    await finished(other)
    return run.run_id


async def approved_with_edit(stage: Stage) -> str:
    """A call that must not run twice waits for leave, and runs with edited arguments."""
    stage.vendor.script(asks_for(("call_p", "Pay", {"sum": 100})), openai_text("Paid."))
    run = await stage.start("careful")
    asked = (await shown(run, "interruption_pending"))["interruption"]
    await stage.answer(run, asked["interrupt_id"], '{"sum": 5}')
    return (await finished(run)).run_id


async def denied(stage: Stage) -> str:
    """Two calls that wait for leave: one gets it, the other is refused and told so."""
    stage.vendor.script(
        asks_for(("call_a", "Pay", {"sum": 1}), ("call_b", "Pay", {"sum": 2})),
        openai_text("One of them."),
    )
    run = await stage.start("careful")
    first = (await shown(run, "interruption_pending"))["interruption"]
    await stage.parked(run)
    pending = await stage.runtime.interrupts.of_run(OPEN, run.run_id, "pending")
    idents = sorted(row.id for row in pending)
    assert first["interrupt_id"] in idents
    await stage.answer(run, first["interrupt_id"], "approve")
    (second,) = [ident for ident in idents if ident != first["interrupt_id"]]
    await stage.answer(run, second, "deny")
    return (await finished(run)).run_id


async def hooked(stage: Stage) -> str:
    """Hooks rewrite a call, grant it a host, and replace its result."""
    path = {"input": {"sum": 2, "url": "http://pay.example"}, "allow_hosts": ["pay.example"]}
    async with stage.hook("before", "pre"), stage.hook("after", "post"):
        stage.vendor.route("POST", "/before", json_reply(path))
        stage.vendor.route("POST", "/after", json_reply({"result": {"text": "seen"}}))
        stage.vendor.script(asks_for(("call_p", "Pay", {"sum": 1})), openai_text("Paid."))
        return (await stage.run("payer")).run_id


async def hooked_and_refused(stage: Stage) -> str:
    """A hook refuses one call; a guard that is away closes the next."""
    stage.vendor.script(
        asks_for(("call_a", "Pay", {"sum": 1})),
        asks_for(("call_b", "Pay", {"sum": 2})),
        openai_text("Neither."),
    )
    refusal = json_reply({"deny": {"text": "too much", "is_error": True}})
    async with stage.hook("guard", "pre", fail_mode="closed"):
        stage.vendor.route("POST", "/guard", refusal)
        run = await stage.start("payer")
        await shown(run, "tool_result")
        stage.vendor.route("POST", "/guard", json_reply({}, status=503))
        return (await finished(run)).run_id


async def paused(stage: Stage) -> str:
    """The runtime paused during a turn: its calls were made, and the rest after the resume."""
    go_on = asyncio.Event()
    turn = asks_for(("call_m", "Memory", {"op": "set", "scope": "user", "key": "p", "value": 1}))
    turn.parts.insert(0, sse(openai_chunk({"role": "assistant", "content": "Soon.\n"})))
    turn.parts.insert(1, Hold(go_on))
    stage.vendor.script(turn, openai_text("Back."))
    run = await stage.start("asker")
    await spoken(run, "Soon.")
    pausing = asyncio.create_task(stage.runtime.pausing.pause())
    await eventually(stage.runtime.services.paused, "the pause to be known here")
    go_on.set()
    await pausing
    await stage.parked(run)
    await stage.runtime.pausing.resume()
    return (await finished(run)).run_id


PEOPLE: tuple[MakeOn, ...] = (
    talked_to,
    steered,
    steered_at_the_cap,
    question_answered,
    question_timed_out,
    question_withdrawn,
    approved_with_edit,
    denied,
    hooked,
    hooked_and_refused,
    paused,
)
