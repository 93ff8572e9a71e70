"""The fold of a scope: live rows, byte usage and pages, whatever the order of events."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st
from msgspec import UNSET, Raw

from events.state import MemoryWritten
from loomcycle.memory.rows import ScopeRows

SWEEP_NS = 5


def event(key: str, value: bytes | None, expires_at_ns: int | None = None) -> MemoryWritten:
    return MemoryWritten(
        scope="user",
        scope_id="u",
        key=key,
        op="set",
        value=UNSET if value is None else Raw(value),
        expires_at_ns=expires_at_ns,
        created_at_ns=0,
        updated_at_ns=0,
    )


KEYS = st.sampled_from(["a", "A", "ab", "a_b", "a%", "é", "𐀀", "\uffff", "b"])
STEPS = st.lists(
    st.tuples(
        KEYS,
        st.none() | st.sampled_from([b"1", b'"long text"', b"null"]),
        st.none() | st.integers(1, 40),
        st.integers(0, 3),
    ),
    max_size=40,
)


@given(STEPS, KEYS, st.sampled_from(["", "a", "a_", "a%", "A", "é"]), st.integers(1, 4))
def test_the_fold_equals_a_plain_dictionary(
    steps: list[tuple[str, bytes | None, int | None, int]], other: str, prefix: str, limit: int
) -> None:
    rows, now = ScopeRows(SWEEP_NS), 0
    model: dict[str, tuple[bytes, int | None]] = {}
    for seq, (key, value, expires, passed) in enumerate(steps, 1):
        now += passed
        rows.apply(seq, event(key, value, expires))
        model.pop(key, None)
        if value is not None:
            model[key] = (value, expires)
        live = {k: v for k, (v, expiry) in model.items() if expiry is None or expiry > now}
        used = sum(len(k.encode()) + len(v) for k, v in live.items() if k != other)
        assert rows.used(now, without=other) == used
        assert rows.live_keys(now) == len(live)
        matching = sorted((k for k in live if k.startswith(prefix)), key=str.encode)
        page = rows.page(prefix, limit, now)
        assert [(k, row.value) for k, row in page.entries] == [
            (k, live[k]) for k in matching[:limit]
        ]
        assert page.truncated == (len(matching) > limit)
        present = other in model and (
            model[other][1] is None or (model[other][1] or 0) + SWEEP_NS > now
        )
        assert (rows.present(other, now) is not None) == present
        assert rows.seq == seq


def test_swept_rows_take_no_memory() -> None:
    rows = ScopeRows(SWEEP_NS)
    for seq in range(1, 101):
        rows.apply(seq, event(f"k{seq}", b"1", expires_at_ns=10))
    assert rows.used(10, without="") == 0
    assert rows.footprint > 0
    assert rows.used(10 + SWEEP_NS, without="") == 0
    assert rows.footprint == 0


def test_without_sweeping_an_expired_row_stays_present() -> None:
    rows = ScopeRows(None)
    rows.apply(1, event("k", b"1", expires_at_ns=10))
    assert rows.live("k", 10) is None
    assert rows.present("k", 10**18) is not None


def test_a_row_rewritten_often_does_not_pile_up_expiries() -> None:
    rows = ScopeRows(None)
    for seq in range(1, 10_000):
        rows.apply(seq, event("k", b"1", expires_at_ns=10**6 + seq))
    assert len(rows._expiries) < 200
    assert rows.used(0, without="") == 2


def test_a_mark_never_hides_a_later_message() -> None:
    rows = ScopeRows(None)
    second = 1_000_000_000
    for seq in range(1, 50_000):
        rows.mark(seq, seq * second)
    for since in (0, 1, 12_345, 49_999, 60_000):
        assert rows.seq_before(since * second) < max(since, 1)
    assert rows.seq_before(40_000 * second) > 39_000
