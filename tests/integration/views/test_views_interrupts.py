"""Questions to people as a view: asked, settled by whoever was first, ended with their run."""

from __future__ import annotations

from typing import Any

import pytest

from events import inbox
from events import vocabulary as v
from projections.rows import Interrupt
from projections.views import Views
from tests.integration.journals import SECOND, Journal, called, finished, opening
from tests.integration.views.world import World

pytestmark = pytest.mark.integration

RUN = "r_00000000000000a1"
OTHER = "r_ff000000000000b2"
NOW = 100 * SECOND


def asks(ident: str, kind: str = "answer", until_ns: int = 0, **body: Any) -> list[v.Event]:
    given: dict[str, Any] = {
        "kind": "question",
        "question": f"{ident}?",
        "priority": "normal",
    } | body
    shown = v.InterruptionBody(interrupt_id=ident, **given)
    waiting = v.CallWaiting(
        tool_use_id=f"call of {ident}",
        kind=kind,  # type: ignore[arg-type]
        ref=ident,
        until_ns=until_ns,
    )
    return [v.InterruptionPending(interruption=shown), waiting]


async def asking(world: World, *idents: str, run: str = RUN, **opened: str) -> Journal:
    journal = Journal(run, tenant=str(opened.get("tenant", "")))
    await world.append(journal, *opening(run, **opened))
    for ident in idents:
        await world.append(journal, called(f"call of {ident}", "Interruption"), *asks(ident))
    return journal


async def says(world: World, message: inbox.InboxMessage, run: str = RUN) -> None:
    await world.store.log.append(world.store.subjects.inbox("", run), inbox.encode(message))


async def row(world: World, views: Views, ident: str, now_ns: int = NOW) -> Interrupt:
    await world.catch_up(views)
    found = await views.queries.interrupt(ident, now_ns=now_ns)
    assert found is not None
    return found


def answer(ident: str, text: str, message: str = "i_1") -> inbox.AnswerMessage:
    return inbox.AnswerMessage(id=message, interrupt_id=ident, answer=text, at_ns=7)


async def test_a_question_is_described_with_its_run(world: World, views: Views) -> None:
    journal = await asking(world, user_id="u1", agent_id="a_1")
    body: dict[str, Any] = {"options": ("yes", "no"), "context": "the car", "priority": "high"}
    await world.append(journal, *asks("q", until_ns=NOW + 1, **body))
    found = await row(world, views, "q")
    assert found == Interrupt(
        id="q",
        run_id=RUN,
        tenant="",
        user_id="u1",
        agent_id="a_1",
        agent="writer",
        kind="question",
        approval=False,
        status="pending",
        question="q?",
        options='["yes","no"]',
        context="the car",
        priority="high",
        answer="",
        created_ns=2 * SECOND,
        expires_ns=NOW + 1,
        resolved_ns=0,
        resolved_by="",
        message="",
    )
    await world.append(journal, *asks("may", kind="approval"))
    assert (await row(world, views, "may")).approval is True


async def test_the_first_message_in_the_inbox_settles_a_question(
    world: World, views: Views
) -> None:
    journal = await asking(world, "q")
    await says(world, answer("q", "elsewhere", "i_0"), OTHER)
    await says(world, answer("q", "one"))
    await says(world, inbox.WithdrawMessage(id="i_2", interrupt_id="q"))
    await says(world, answer("q", "two", "i_3"))
    found = await row(world, views, "q")
    assert (found.status, found.answer, found.resolved_by) == ("resolved", "one", "api")
    assert (found.resolved_ns, found.message) == (7, "i_1")
    closed = v.InterruptClosed(interrupt_id="q", status="resolved", answer="one", inbox="i_1")
    await world.append(journal, closed, finished("cancelled"))
    assert await row(world, views, "q") == found


async def test_questions_end_by_the_journal_the_clock_and_the_end_of_their_run(
    world: World, views: Views
) -> None:
    journal = await asking(world, "back", "open")
    await world.append(journal, *asks("late", until_ns=NOW))
    by_agent = v.InterruptClosed(
        interrupt_id="back", status="cancelled", resolved_by="agent_cancel", resolved_ns=9
    )
    await world.append(journal, by_agent)
    found = await row(world, views, "back")
    assert (found.status, found.resolved_by, found.resolved_ns) == ("cancelled", "agent_cancel", 9)
    assert (await row(world, views, "late", NOW - 1)).status == "pending"
    found = await row(world, views, "late", NOW)
    assert (found.status, found.resolved_by, found.resolved_ns) == ("timed_out", "timeout", NOW)
    assert (await row(world, views, "open")).status == "pending"
    journal.at = NOW
    await world.append(journal, finished("cancelled"))
    found = await row(world, views, "open")
    assert (found.status, found.resolved_by) == ("cancelled", "agent_cancel")
    assert found.resolved_ns == NOW


async def test_a_message_that_waits_for_nobody_is_settled_at_once(
    world: World, views: Views
) -> None:
    journal = await asking(world)
    told = v.InterruptNotified(interrupt_id="n", message="half done", priority="low")
    await world.append(journal, told)
    found = await row(world, views, "n")
    assert (found.question, found.priority, found.status) == ("half done", "low", "cancelled")
    assert (found.resolved_by, found.resolved_ns) == ("agent_cancel", found.created_ns)


async def test_lists_by_run_and_user_hide_other_tenants(world: World, views: Views) -> None:
    await asking(world, "q1", "q2", user_id="u1")
    await asking(world, "q3", run=OTHER, user_id="u1", tenant="acme")
    await says(world, answer("q1", "one"))
    await world.catch_up(views)

    async def of_user(status: str | None, tenant: str | None, limit: int = 200) -> list[str]:
        found = await views.queries.interrupts_of_user(
            "u1", status, tenant, now_ns=NOW, limit=limit
        )
        return [each.id for each in found]

    async def of_run(run: str, status: str | None, tenant: str | None) -> list[str]:
        found = await views.queries.interrupts_of_run(run, status, tenant, now_ns=NOW)
        return [each.id for each in found]

    assert await of_user(None, "") == ["q2", "q1"]
    assert sorted(await of_user(None, None)) == ["q1", "q2", "q3"]
    assert await of_user("pending", "acme") == ["q3"]
    assert await of_user("resolved", None) == ["q1"]
    assert await of_user("no such word", None) == []
    assert len(await of_user(None, None, 1)) == 1
    assert await of_run(RUN, None, None) == ["q2", "q1"]
    assert await of_run(RUN, "pending", "") == ["q2"]
    assert await of_run(OTHER, None, "") == []
