"""The table of streams, and the files for operators that are made from it."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from events.ids import slot
from events.memory_stream import matches
from events.streams import RUN_SEQ_SPAN, RUNS, STARTS, STREAMS, export, stream_of
from events.subjects import STATE_AREAS, Subjects

NATS_FILES = Path(__file__).parents[2] / "nats"
SUBJECTS = Subjects("loom")

names = st.text(max_size=80)


def holders(subject: str) -> list[str]:
    return [
        spec.name
        for spec in STREAMS
        if any(matches(f"loom.{p}".split("."), subject.split(".")) for p in spec.subjects)
    ]


@given(names, names, names, names)
def test_every_stored_subject_belongs_to_exactly_one_stream(
    tenant: str, one: str, two: str, three: str
) -> None:
    s = SUBJECTS
    for subject in (
        s.journal(tenant, one),
        s.session(tenant, one),
        s.start(0, tenant, one, two),
        s.wake(one),
        s.channel(tenant, one, two, three),
        s.definition(tenant, one, two),
        s.memory(tenant, one, two, three),
        *(s.state(area, tenant, one) for area in sorted(STATE_AREAS)),
        s.timer(one, two),
        s.due(one, two),
        s.seal(one, two),
        s.blob(one, two),
        s.lease(one),
    ):
        assert holders(subject) == [stream_of(s, subject).name]


def test_messages_that_nobody_stores_belong_to_no_stream() -> None:
    for subject in (SUBJECTS.live("r_1"), SUBJECTS.signal("r_1")):
        assert holders(subject) == []
        with pytest.raises(ValueError):
            stream_of(SUBJECTS, subject)


def test_runs_are_spread_by_slot_over_ranges_of_sequences_that_never_meet() -> None:
    assert [spec.first_seq for spec in RUNS] == [k * RUN_SEQ_SPAN for k in range(len(RUNS))]
    assert len(RUNS) * RUN_SEQ_SPAN * 1024 < 2**53
    for digits in range(256):
        run = f"r_{digits:02x}00000000000000"
        assert slot(run) == f"{digits:02x}"
        assert stream_of(SUBJECTS, SUBJECTS.journal("t", run)) is RUNS[digits // 64]


def test_a_filter_over_all_slots_is_refused() -> None:
    with pytest.raises(ValueError, match="slot"):
        stream_of(SUBJECTS, "loom.run.>")


def test_names_and_subjects_carry_the_prefix() -> None:
    for spec in STREAMS:
        config = spec.config("other")
        assert config["name"] == f"other-{spec.name}"
        assert all(subject.startswith("other.") for subject in config["subjects"])


def test_bounds_of_the_start_queue_refuse_and_none_means_none() -> None:
    bounded = STARTS.config("loom", total=10, per_user=2)
    assert bounded["discard"] == "new"
    assert bounded["discard_new_per_subject"] is True
    assert (bounded["max_msgs"], bounded["max_msgs_per_subject"]) == (10, 2)
    free = STARTS.config("loom")
    assert (free["max_msgs"], free["max_msgs_per_subject"]) == (-1, -1)
    assert "discard_new_per_subject" not in free


def test_replicas_apply_to_every_stream() -> None:
    assert {spec.config("loom", 3)["num_replicas"] for spec in STREAMS} == {3}


def test_the_exported_files_are_up_to_date() -> None:
    expected = export()
    assert {p.name for p in NATS_FILES.glob("*.json")} == set(expected)
    for name, text in expected.items():
        assert (NATS_FILES / name).read_bytes() == text, "run: python -m events.streams nats"
        assert msgspec.json.decode(text)["description"]
