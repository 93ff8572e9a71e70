"""Journals of every shape and release still fold, prove and show what they did when recorded.

A difference here means that this version would treat runs that exist in logs differently:
raise ``MACHINE_VERSION`` or write an upcast; do not record old releases again.
"""

from __future__ import annotations

import asyncio
from functools import cache
from pathlib import Path

import pytest
from msgspec.structs import replace

from events.commit import BrokenChain, JournalError, decode
from events.vocabulary import TYPES
from loomcycle import __version__
from replay.verify import Report
from tests.chains import check_chain
from tests.golden.facts import Facts, facts_of, proof_of
from tests.golden.format import Golden, files, read
from tests.golden.playback import store_of
from tests.golden.shapes import NAMES
from tests.golden.stage import CREDENTIAL, SECRET

RESERVED = {"run.imported", "run.forked", "run.archived"}
"""Event types of later versions: nothing writes them in this one."""

FILES = list(files())

every_journal = pytest.mark.parametrize(
    "path", FILES, ids=[f"{path.parent.name}/{path.stem}" for path in FILES]
)


@cache
def golden_of(path: Path) -> Golden:
    return read(path)


@cache
def facts_now(path: Path) -> Facts:
    """What this version makes of the journal."""
    golden = golden_of(path)

    async def read_back() -> Facts:
        return await facts_of(await store_of(golden), "", golden.expected.run)

    return asyncio.run(read_back())


def proof_now(golden: Golden) -> Report:
    async def prove() -> Report:
        return await proof_of(await store_of(golden), "", golden.expected.run)

    return asyncio.run(prove())


@every_journal
def test_the_chain_holds_from_the_first_commit_to_the_last(path: Path) -> None:
    golden = golden_of(path)
    for run in {commit.run for commit in golden.commits}:
        commits = [decode(c.data.encode(), c.seq) for c in golden.journal(run)]
        chain = check_chain(run, commits)
        assert chain.n == sum(len(commit.bodies) for commit in commits)
    assert golden.expected.facts.state.hash == chain_end(golden)


def chain_end(golden: Golden) -> str:
    run = golden.expected.run
    return check_chain(run, [decode(c.data.encode(), c.seq) for c in golden.journal(run)]).hash


@every_journal
def test_every_effect_is_asked_for_again_with_the_same_request(path: Path) -> None:
    golden = golden_of(path)
    assert list(facts_now(path).effects) == list(golden.expected.facts.effects)


@every_journal
def test_the_journal_is_proven_to_its_end(path: Path) -> None:
    report = proof_now(golden_of(path))
    assert report.difference == ""
    assert report.complete


@every_journal
def test_the_fold_ends_in_the_same_state(path: Path) -> None:
    assert facts_now(path).state == golden_of(path).expected.facts.state


@every_journal
def test_the_transcript_has_the_same_rows(path: Path) -> None:
    assert list(facts_now(path).rows) == list(golden_of(path).expected.facts.rows)


@every_journal
def test_a_client_of_the_run_is_sent_the_same_frames(path: Path) -> None:
    assert list(facts_now(path).live) == list(golden_of(path).expected.facts.live)


@every_journal
def test_a_later_reader_is_sent_the_same_frames(path: Path) -> None:
    assert list(facts_now(path).replay) == list(golden_of(path).expected.facts.replay)


@every_journal
def test_no_byte_of_a_commit_can_change_unnoticed(path: Path) -> None:
    golden = golden_of(path)
    run = golden.expected.run
    journal = golden.journal(run)
    for place, stored in enumerate(journal[:-1]):
        for at in (len(stored.data) // 3, len(stored.data) - 2):
            other = "0" if stored.data[at] != "0" else "1"
            forged = replace(stored, data=stored.data[:at] + other + stored.data[at + 1 :])
            changed = [*journal[:place], forged, *journal[place + 1 :]]
            with pytest.raises(JournalError):
                check_chain(run, [decode(c.data.encode(), c.seq) for c in changed])


@every_journal
def test_a_lost_commit_is_noticed_by_the_next_one(path: Path) -> None:
    golden = golden_of(path)
    run = golden.expected.run
    commits = [decode(c.data.encode(), c.seq) for c in golden.journal(run)]
    for place in range(len(commits) - 1):
        with pytest.raises(BrokenChain):
            check_chain(run, commits[:place] + commits[place + 1 :])


@every_journal
def test_no_journal_holds_a_secret(path: Path) -> None:
    golden = golden_of(path)
    stored = "".join(commit.data for commit in golden.commits).encode()
    stored += b"".join(golden.blobs.values())
    for secret in (SECRET, CREDENTIAL, "swordfish"):
        assert secret.encode() not in stored


def test_masked_events_are_marked_and_named() -> None:
    for path in FILES:
        if path.stem == "masked":
            golden = golden_of(path)
            commits = [decode(c.data.encode(), c.seq) for c in golden.journal(golden.expected.run)]
            masked = {e.type for c in commits for e in c.header.events if e.masked}
            assert masked >= {"run.started", "user_input", "text", "tool_call", "tool_result"}


def test_every_shape_of_this_release_is_recorded() -> None:
    assert {p.stem for p in FILES if p.parent.name == __version__} == set(NAMES)


def test_every_event_type_stands_in_a_golden_journal() -> None:
    written = {
        event.type
        for path in FILES
        for commit in golden_of(path).commits
        for event in decode(commit.data.encode(), commit.seq).header.events
    }
    assert set(TYPES) - written == RESERVED
