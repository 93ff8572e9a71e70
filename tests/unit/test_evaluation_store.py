"""Evaluations under lost answers, crashes and several processes: each is stored exactly once."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec import UNSET, Raw

from events import evaluations as wire
from events.log import EventStore, Message
from events.memory_faults import Fault
from events.memory_store import MemoryServer
from events.plan import RunPlan
from events.state import FutureState, UnreadableState
from loomcycle.evaluations.errors import EvaluationsUnavailable
from loomcycle.evaluations.roles import Judged, may_submit, role_of, scopes_for
from loomcycle.evaluations.store import Evaluations, Submission
from loomcycle.loading import Plans
from loomcycle.redaction import Redactor
from projections.views import Views, ViewSettings
from tests.integration.journals import Journal, opening
from tests.virtual_time import play

RUN = "r_00000000000000a1"
JUDGED = Judged(RUN, "a_00000000000000a1", "", "")
NO_VIEWS: Any = None
"""For tests that only write."""


class Faulty:
    """Hands out one fault after another to the appends of a client."""

    def __init__(self, faults: Sequence[Fault | None] = ()) -> None:
        self.pending = list(faults)

    async def __call__(self, client: str, operation: str) -> Fault | None:
        if client != "reader" and operation == "log.append" and self.pending:
            return self.pending.pop(0)
        return None


def of(store: EventStore, views: Views = NO_VIEWS, **options: Any) -> Evaluations:
    return Evaluations(store, views, Plans(store), **options)


def submission(effect_id: str = "r_1.5", **fields: Any) -> Submission:
    given: dict[str, Any] = {
        "tenant": "t",
        "judged": JUDGED,
        "score": 0.5,
        "role": "self",
        "emitter_agent_id": "a_1",
        "effect_id": effect_id,
        "now_ns": 7,
    }
    return Submission(**(given | fields))


async def stored(server: MemoryServer) -> list[Message]:
    return await server.connect("reader").log.read(server.subjects.state_under("eval", "t"))


@asynccontextmanager
async def with_views(server: MemoryServer, folder: Path) -> AsyncIterator[Evaluations]:
    async def factory() -> EventStore:
        return server.connect("views")

    views = await Views.open(ViewSettings(path=str(folder)), factory, own_thread=False)
    await views.ready()
    try:
        yield of(server.connect("a"), views)
    finally:
        await views.close()


# --- writing --------------------------------------------------------------------------------


@settings(max_examples=40)
@given(
    st.lists(st.sampled_from([None, *Fault]), max_size=12),
    st.lists(st.sampled_from(["r_1.5", "r_1.6", "r_2.5"]), min_size=1, max_size=6),
)
def test_each_effect_is_one_evaluation_whatever_happens_to_its_appends(
    faults: list[Fault | None], effects: list[str]
) -> None:
    async def story() -> None:
        server = MemoryServer(Faulty(faults))
        processes = [of(server.connect(name)) for name in "ab"]
        submitted = await asyncio.gather(
            *(
                processes[index % 2].submit(submission(effect, now_ns=index))
                for index, effect in enumerate(effects)
            )
        )
        await asyncio.sleep(10)
        messages = await stored(server)
        kept = {wire.decode(message.data) for message in messages}
        assert len(messages) == len(set(effects))
        assert {event.effect_id for event in submitted} == set(effects)
        assert set(submitted) == kept

    play(story)


async def test_a_repeated_submission_answers_with_what_was_stored_first() -> None:
    store = MemoryServer().connect("a")
    first = await of(store).submit(submission(score=1.0, now_ns=7))
    again = await of(store).submit(submission(score=2.0, now_ns=9))
    assert again == first
    assert first.eval_id.startswith("eval_")
    assert len(first.eval_id) == len("eval_") + 16


async def test_an_id_that_another_effect_has_is_not_used_again() -> None:
    store = MemoryServer().connect("a")
    other = wire.EvaluationSubmitted(
        eval_id=wire.eval_id("r_1.5"),
        tenant="t",
        run_id=RUN,
        score=1,
        emitter_role="self",
        created_at_ns=1,
        effect_id="somebody else's",
    )
    subject = store.subjects.state("eval", "t", RUN, other.eval_id)
    await store.log.append(subject, wire.encode(other))
    event = await of(store).submit(submission())
    assert event.eval_id == wire.eval_id("r_1.5", 1) != other.eval_id
    assert await of(store).submit(submission()) == event


async def test_known_secrets_are_masked_before_they_are_stored() -> None:
    redactor = Redactor.from_environment({"DEPLOY_TOKEN": "hunter2-hunter2"})
    store = MemoryServer().connect("a")
    event = await of(store, redactor=redactor).submit(
        submission(
            rationale="it said hunter2-hunter2",
            judgement=Raw(b'{"k":"hunter2-hunter2","n":1.0}'),
            dimensions={"hunter2-hunter2": 1.0},
        )
    )
    assert b"hunter2" not in wire.encode(event)
    assert "DEPLOY_TOKEN" in event.rationale
    assert event.judgement is not UNSET
    assert b'"n":1.0' in bytes(event.judgement)


def test_an_unavailable_log_is_waited_for() -> None:
    async def story() -> None:
        server = MemoryServer(Faulty([Fault.FAIL_BEFORE] * 100))
        await of(server.connect("a")).submit(submission())
        assert len(await stored(server)) == 1

    play(story)


def test_nobody_waits_for_ever() -> None:
    async def story() -> None:
        server = MemoryServer(Faulty([Fault.FAIL_BEFORE] * 10_000))
        with pytest.raises(EvaluationsUnavailable, match="the log is unavailable"):
            await of(server.connect("a")).submit(submission())

    play(story)


# --- the judged run -------------------------------------------------------------------------


async def begin(store: EventStore, tenant: str = "t", **fields: Any) -> None:
    plan = RunPlan(agent="writer", provider="mock", model="m", agent_def_id="def_1")
    name = await Plans(store).put(plan)
    journal = Journal(RUN, tenant)
    await journal.append(
        store.log, store.subjects, *opening(RUN, tenant=tenant, plan=name, **fields)
    )


async def test_a_run_is_found_by_its_id_with_its_pinned_definition() -> None:
    store = MemoryServer().connect("a")
    await begin(store, parent_agent_id="a_9")
    expected = Judged(RUN, "a_00000000000000a1", "a_9", "def_1")
    assert await of(store).judged("t", RUN) == expected
    assert await of(store).judged(None, RUN) == expected


@pytest.mark.parametrize(("tenant", "run"), [("other", RUN), ("t", "r_0"), ("t", "*"), ("t", "")])
async def test_no_run_is_found_by_another_id_or_tenant(tenant: str, run: str) -> None:
    store = MemoryServer().connect("a")
    await begin(store)
    assert await of(store).judged(tenant, run) is None


@pytest.mark.parametrize(
    ("agent_id", "role", "scopes"),
    [
        ("", "external", {"submit_any"}),
        ("a_own", "self", {"submit_self", "submit_any"}),
        ("a_parent", "parent", {"submit_descendants", "submit_any"}),
        ("a_other", "unrelated", {"submit_any"}),
    ],
)
def test_the_role_follows_from_the_runs_and_needs_a_scope(
    agent_id: str, role: str, scopes: set[str]
) -> None:
    found = role_of(agent_id, Judged(RUN, "a_own", "a_parent", ""))
    assert found == role
    assert set(scopes_for(found)) == scopes
    every = {"submit_self", "submit_siblings", "submit_descendants", "submit_any", "read_any"}
    assert {scope for scope in every if may_submit(found, [scope])} == scopes


def test_a_run_without_parent_is_nobodys_child() -> None:
    assert role_of("", Judged(RUN, "a_own", "", "")) == "external"


# --- reading --------------------------------------------------------------------------------


async def test_what_was_submitted_is_read_at_once(tmp_path: Path) -> None:
    async with with_views(MemoryServer(), tmp_path) as store:
        event = await store.submit(submission(judged=Judged(RUN, "a", "", "def_1")))
        row = await store.get("t", event.eval_id)
        assert row is not None
        assert row.score == 0.5
        assert await store.of_run("t", RUN, 10) == [row]
        assert await store.of_definition("t", "def_1", 10) == [row]
        assert await store.get("other", event.eval_id) is None


async def test_an_aggregate_of_nothing_is_zero(tmp_path: Path) -> None:
    async with with_views(MemoryServer(), tmp_path) as store:
        found = await store.aggregate("t", "def_1", lineage=True)
        assert (found.count, found.score.count, found.score.mean) == (0, 0, 0)
        assert (found.dimensions, found.by_emitter_role) == ({}, {})
        assert found.lineage_included


# --- the event ------------------------------------------------------------------------------


def test_events_of_newer_versions_are_never_guessed() -> None:
    for data in (b'{"type":"evaluation.submitted","v":9}', b'{"type":"evaluation.gone"}'):
        with pytest.raises(FutureState):
            wire.decode(data)
    assert wire.decode(b'{"type":"evaluation.noted","must_understand":false}') is None


@pytest.mark.parametrize("data", [b"{", b"[]", b"{}", b'{"type":"evaluation.submitted"}', b"\xff"])
def test_what_is_no_evaluation_cannot_be_read(data: bytes) -> None:
    with pytest.raises(UnreadableState):
        wire.decode(data)
