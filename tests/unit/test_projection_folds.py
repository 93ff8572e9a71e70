"""The folds as pure functions: given these events, those rows change."""

from __future__ import annotations

import asyncio

import pytest
from msgspec import UNSET, Raw

from events import state
from events import vocabulary as v
from events.blobs import ChunkedBlobs
from events.log import Message
from events.memory_store import MemoryServer
from events.subjects import Subjects
from projections.framework import Change, Write
from projections.memory.fold import fold as fold_memory
from projections.runs.fold import awaited
from projections.runs.fold import fold as fold_runs
from projections.sources import (
    Decoder,
    Hold,
    InboxPost,
    Item,
    JournalFault,
    MemoryFault,
    MemoryWrite,
    sources_of,
)
from projections.statements import load
from tests.integration.journals import Journal, ending, opening, usage

SUBJECTS = Subjects("loom")
RUN = "r_00000000000000a1"


def decode(*messages: tuple[str, bytes]) -> list[Item]:
    """Items of messages at sequences 1, 2, …"""

    async def work() -> list[Item]:
        store = MemoryServer().connect("d")
        assert isinstance(store.blobs, ChunkedBlobs)
        kind = "state" if ".mem." in messages[0][0] else "runs"
        stored = [Message(s, seq, 0, data) for seq, (s, data) in enumerate(messages, 1)]
        return await Decoder(SUBJECTS, store.blobs).decode(kind, stored)  # type: ignore[arg-type]

    return asyncio.run(work())


def named(write: Change) -> dict[str, object]:
    """The values of a write to runs by their names."""
    assert isinstance(write, Write)
    statement = load("projections.runs", "writes", "sqlite")[write.statement]
    return dict(zip(statement.params, write.params, strict=True))


def test_a_first_commit_is_one_row() -> None:
    journal = Journal(RUN)
    subject = journal.subject(SUBJECTS)
    (write,) = fold_runs(decode((subject, journal.commit(*opening(RUN)))))
    row = named(write)
    assert write.statement == "start_run"
    assert (row["status"], row["last_n"], row["hash"]) == ("running", 4, journal.prev)


def test_a_run_that_failed_at_once_is_one_row() -> None:
    journal = Journal(RUN)
    error = "agent_id collision; run never started"
    data = journal.commit(*opening(RUN), v.RunFinished(status="failed", error=error))
    write = fold_runs(decode((journal.subject(SUBJECTS), data)))[0]
    assert (named(write)["status"], named(write)["error"]) == ("failed", error)


def test_commits_that_follow_each_other_in_a_batch_are_one_change_of_the_row() -> None:
    journal = Journal(RUN)
    subject = journal.subject(SUBJECTS)
    commits = [
        (subject, journal.commit(*events)) for events in (opening(RUN), [usage(1, 1)], ending())
    ]
    whole = fold_runs(decode(*commits))
    assert [w.statement for w in whole] == ["start_run"]
    row = named(whole[0])
    assert (row["last_commit"], row["input_tokens"], row["status"]) == (3, 10, "completed")
    assert (row["first_seq"], row["second_seq"], row["seq"]) == (1, 2, 3)
    rest = fold_runs(decode(*commits[1:]))
    assert [w.statement for w in rest] == ["check_link", "advance_run"]
    assert named(rest[1])["prev_commit"] == 1


def test_a_commit_that_does_not_follow_in_a_batch_is_checked_in_the_database() -> None:
    journal = Journal(RUN)
    subject = journal.subject(SUBJECTS)
    first = (subject, journal.commit(*opening(RUN)))
    journal.commit(usage(1, 1))
    writes = fold_runs(decode(first, (subject, journal.commit(*ending()))))
    assert [w.statement for w in writes] == ["start_run", "check_link", "advance_run"]


def test_folding_twice_gives_the_same_writes() -> None:
    journal = Journal(RUN)
    subject = journal.subject(SUBJECTS)
    items = decode((subject, journal.commit(*opening(RUN))), (subject, journal.commit(*ending())))
    assert fold_runs(items) == fold_runs(items)


def test_messages_of_no_known_kind_are_items_without_meaning_and_sessions_are_none() -> None:
    items = decode((SUBJECTS.inbox("t", RUN), b"x"), (SUBJECTS.session("", "s_1"), b"y"))
    assert items == [InboxPost(1, RUN, "t", None)]
    assert fold_runs(items) == []


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"", "unreadable header"),
        (b"{}", "unreadable header"),
        (Journal("r_other").commit(*opening("r_other")), "belongs to r_other"),
        (Journal(RUN).commit(*opening(RUN)) + b"\n", "differ in number"),
    ],
)
def test_what_is_no_commit_of_the_run_is_a_fault_of_the_run(data: bytes, reason: str) -> None:
    (item,) = decode((SUBJECTS.journal("t", RUN), data))
    assert isinstance(item, JournalFault)
    assert (item.seq, item.run, item.tenant, item.kind) == (1, RUN, "t", "broken")
    assert reason in item.reason


def test_a_missing_blob_is_a_fault_of_the_run() -> None:
    journal = Journal(RUN)
    data = journal.commit(*opening(RUN), v.Text(text="x" * 300_000))
    (item,) = decode((journal.subject(SUBJECTS), data))
    assert isinstance(item, JournalFault)
    assert "is missing" in item.reason


@pytest.mark.parametrize(
    ("tool", "arguments", "expected"),
    [
        ("Channel", '{"op":"subscribe","channel":"c"}', ("channel", "c")),
        ("Channel", '{"op":"publish","channel":"c"}', None),
        ("Interruption", '{"op":"ask","question":"?"}', ("interrupted", "question")),
        ("Interruption", '{"op":"ask","kind":"approval"}', ("interrupted", "approval")),
        ("Interruption", '{"op":"notify"}', None),
        ("Interruption", "7", None),
        ("Memory", '{"op":"subscribe"}', None),
    ],
)
def test_only_subscribing_and_asking_wait(
    tool: str, arguments: str, expected: tuple[str, str] | None
) -> None:
    assert awaited(tool, Raw(arguments.encode())) == expected


# --- memory -----------------------------------------------------------------------------------


def written(**fields: object) -> state.MemoryWritten:
    given: dict[str, object] = {
        "scope": "user",
        "scope_id": "u",
        "key": "k",
        "op": "set",
        "created_at_ns": 1,
        "updated_at_ns": 2,
    }
    return state.MemoryWritten(**(given | fields))  # type: ignore[arg-type]


MEMORY = SUBJECTS.memory("", "user", "u", "k")


@pytest.mark.parametrize("value", [b"null", b'{"b": 1,  "a": 2}', b'"\\u0000"', b"1.50"])
def test_a_memory_value_is_kept_byte_for_byte(value: bytes) -> None:
    event = written(value=Raw(value), result=Raw(b'{"ok":true}'), effect_id="r_1/7")
    (item,) = decode((MEMORY, state.encode(event)))
    assert isinstance(item, MemoryWrite)
    assert bytes(item.event.value) == value  # type: ignore[arg-type]
    (write,) = fold_memory([item])
    assert write.params[4] == value.decode()


def test_a_memory_event_without_value_deletes() -> None:
    event = state.decode(state.encode(written()))
    assert event is not None
    assert event.value is UNSET
    (write,) = fold_memory([MemoryWrite(1, event)])
    assert (write.statement, write.params) == ("delete_memory", ("", "user", "u", b"k"))


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"[]",
        b'{"v":1}',
        b'{"type":"memory.written","key":5}',
        b"\xff",
    ],
)
def test_unreadable_memory_is_a_fault(data: bytes) -> None:
    (item,) = decode((MEMORY, data))
    assert isinstance(item, MemoryFault)


@pytest.mark.parametrize(
    "data",
    [
        b'{"type":"memory.merged"}',
        state.encode(written(value=Raw(b"1"))).replace(b"{", b'{"v":2,', 1),
    ],
)
def test_a_newer_memory_event_ends_the_fold(data: bytes) -> None:
    items = decode((MEMORY, state.encode(written())), (MEMORY, data), (MEMORY, data))
    assert [type(i) for i in items] == [MemoryWrite, Hold]
    assert items[-1].seq == 2


def test_a_newer_memory_event_that_need_not_be_understood_is_ignored() -> None:
    assert decode((MEMORY, b'{"type":"memory.seen","must_understand":false}')) == []


def test_other_areas_of_state_are_not_memory() -> None:
    assert decode((MEMORY, b"[]"), (SUBJECTS.agent_handle("", "a"), b"x"))[1:] == []


def test_sources_cover_every_slot_once() -> None:
    roots = [root for source in sources_of(SUBJECTS) for root in source.roots]
    assert len(roots) == len(set(roots)) > 256
