"""Subjects: reversible, short, and safe whatever a name contains."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from events.ids import slot
from events.subjects import (
    LANES,
    MAX_NAME_BYTES,
    NotReversible,
    Subjects,
    decode,
    encode,
    lane_of,
)

TOKEN = re.compile(r"[A-Za-z0-9_=~-]+")
SUBJECTS = Subjects("x" * 32)

names = st.text(st.characters(exclude_categories=()), max_size=300)
nasty = st.sampled_from(["", ".", "*", ">", "a.b", " ", "\r\n", "=", "~", "=2A", "ü", "\ud800"])
any_name = names | nasty
any_id = st.text(max_size=200)


@given(any_name)
def test_a_name_becomes_one_plain_token(name: str) -> None:
    token = encode(name)
    assert TOKEN.fullmatch(token)
    assert len(token) <= 3 * MAX_NAME_BYTES


@given(any_name)
def test_a_short_name_comes_back_from_its_token(name: str) -> None:
    if len(name.encode("utf-8", "surrogatepass")) <= MAX_NAME_BYTES:
        assert decode(encode(name)) == name
    else:
        assert re.fullmatch(r"~[0-9a-f]{64}", encode(name))
        with pytest.raises(NotReversible):
            decode(encode(name))


@given(any_name, any_name)
def test_different_names_have_different_tokens(one: str, other: str) -> None:
    assert (encode(one) == encode(other)) == (one == other)


@pytest.mark.parametrize(
    ("name", "token"),
    [
        ("Agent_1-b", "Agent_1-b"),
        ("", "="),
        ("a.b", "a=2Eb"),
        ("*", "=2A"),
        (">", "=3E"),
        ("=", "=3D"),
        ("~", "=7E"),
        ("ü", "=C3=BC"),
        ("x" * 64, "x" * 64),
    ],
)
def test_the_encoding_is_the_documented_one(name: str, token: str) -> None:
    assert encode(name) == token
    assert decode(token) == name


@pytest.mark.parametrize("token", ["a.b", "*", ">", "=2", "=2a", "=GG", "a b", "a~b", ""])
def test_what_is_no_token_is_refused(token: str) -> None:
    with pytest.raises(ValueError):
        decode(token)


@given(any_name, any_id, any_name, any_name, any_name)
def test_every_subject_is_short_and_free_of_wildcards(
    tenant: str, one: str, two: str, three: str, four: str
) -> None:
    s = SUBJECTS
    made = [
        s.journal(tenant, one),
        s.inbox(tenant, one),
        s.session(tenant, one),
        s.start(31, tenant, two, one),
        s.wake(one),
        s.memory(tenant, one, two, three),
        s.definition(tenant, one, two),
        s.agent_handle(tenant, one),
        s.channel(tenant, one, two, three),
        s.state("doc", tenant, one, two, three, four),
        s.timer(one, two),
        s.due(one, two),
        s.lease(one),
        s.seal(one, two),
        s.blob(one, two),
        s.live(one),
        s.signal(one),
    ]
    for subject in made:
        assert len(subject.encode()) < 1024
        assert all(TOKEN.fullmatch(token) for token in subject.split("."))
    assert len(set(made)) == len(made)


@given(any_name, any_id, any_name, any_name)
def test_filters_end_in_their_only_wildcard(tenant: str, one: str, two: str, three: str) -> None:
    s = SUBJECTS
    for pattern, member in (
        (s.run(tenant, one), s.journal(tenant, one)),
        (s.memory_scope(tenant, one, two), s.memory(tenant, one, two, three)),
        (s.definitions(tenant, one), s.definition(tenant, one, two)),
        (s.state_under("doc", tenant, one), s.state("doc", tenant, one, two)),
        (s.seals(one), s.seal(one, two)),
        (s.blob_parts(one), s.blob(one, two)),
        (s.lane(7), s.start(7, tenant, one, two)),
        (s.any("wake"), s.wake(one)),
    ):
        assert pattern.endswith(".>")
        assert "*" not in pattern
        assert ">" not in pattern[:-1]
        assert member.startswith(pattern[:-1])


short = st.text(st.characters(exclude_categories=()), max_size=16)


@given(short, st.text(max_size=16), short, short)
def test_parse_gives_back_the_names(tenant: str, one: str, two: str, three: str) -> None:
    s = SUBJECTS
    run = s.parse(s.journal(tenant, one))
    assert (run.kind, run.tenant, run.run_id, run.slot) == ("journal", tenant, one, slot(one))
    assert s.parse(s.inbox(tenant, one)).kind == "inbox"
    session = s.parse(s.session(tenant, one))
    assert (session.kind, session.session_id, session.run_id) == ("session", one, "")
    wake = s.parse(s.wake(one))
    assert (wake.kind, wake.run_id) == ("wake", one)
    memory = s.parse(s.memory(tenant, one, two, three))
    assert (memory.kind, memory.tenant, memory.scope, memory.scope_id, memory.key) == (
        "memory",
        tenant,
        one,
        two,
        three,
    )
    definition = s.parse(s.definition(tenant, one, two))
    assert (definition.tenant, definition.key, definition.name) == (tenant, one, two)
    channel = s.parse(s.channel(tenant, one, two, three))
    assert (channel.kind, channel.scope, channel.scope_id, channel.name) == (
        "channel",
        one,
        two,
        three,
    )
    assert s.parse(s.state("path", tenant, one, two)).names == (tenant, one, two)
    timer = s.parse(s.timer(one, two))
    assert (timer.kind, timer.key, timer.name) == ("timer", one, two)
    assert s.parse(s.signal(one)).run_id == one


@given(short, short, short)
def test_a_start_without_a_user_has_a_subject_of_its_own(tenant: str, user: str, run: str) -> None:
    parsed = SUBJECTS.parse(SUBJECTS.start(3, tenant, user, run))
    assert (parsed.kind, parsed.lane, parsed.tenant, parsed.user_id) == ("start", 3, tenant, user)
    assert parsed.run_id == ("" if user else run)


def test_a_long_name_parses_to_its_hash() -> None:
    parsed = SUBJECTS.parse(SUBJECTS.memory("t", "user", "u", "k" * 65))
    assert parsed.key == encode("k" * 65)


@pytest.mark.parametrize(
    "subject",
    [
        "",
        "other.wake.00.r",
        "loom",
        "loom.wake",
        "loom.wake.00",
        "loom.unknown.a.b",
        "loom.run.00.t.r.other",
        "loom.chan.t.s",
    ],
)
def test_a_foreign_subject_is_refused(subject: str) -> None:
    with pytest.raises(ValueError):
        Subjects("loom").parse(subject)


@pytest.mark.parametrize("prefix", ["", "a.b", "*", "x" * 33, "a b", ">"])
def test_a_prefix_that_is_no_token_is_refused(prefix: str) -> None:
    with pytest.raises(ValueError, match="prefix"):
        Subjects(prefix)


def test_a_session_and_its_first_run_share_a_slot() -> None:
    session = SUBJECTS.session("t", "s_ab00000000000000")
    run = SUBJECTS.journal("t", "r_ab00000000000000")
    assert session.split(".")[:3] == run.split(".")[:3]


@given(any_name, any_name, any_name)
def test_a_named_user_has_one_lane(tenant: str, user: str, run: str) -> None:
    lane = lane_of(tenant, user, run)
    assert 0 <= lane < LANES
    if user:
        assert lane == lane_of(tenant, user, run + "other")


def test_lanes_are_stable_over_versions_and_spread() -> None:
    assert lane_of("t", "u", "r_1") == 13
    assert {lane_of("t", "", f"r_{i}") for i in range(1000)} == set(range(LANES))
