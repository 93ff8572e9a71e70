"""The Memory tool as an agent sees it, over the log in memory."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from msgspec import UNSET, Raw

from events import state
from events.memory_store import MemoryServer
from events.plan import RunPlan
from loomcycle.memory.store import RowStore
from loomcycle.redaction import Redactor
from loomcycle.tools.base import CallContext, Repeat
from loomcycle.tools.memory import Memory, timestamp
from loomcycle.tools.memory_input import OPERATIONS

NOW = 1_777_629_600_123_456_789
SECOND = 1_000_000_000
MISSING = {"value": None, "expires_at": None}


class Agent:
    """Calls the tool as one agent; each call is another effect."""

    def __init__(self, tool: Memory, **plan: Any) -> None:
        self.tool = tool
        self.plan = RunPlan(
            **{
                "agent": "notes",
                "provider": "p",
                "model": "m",
                "memory_scopes": ("agent", "user"),
                **plan,
            }
        )
        self.now = NOW
        self.tenant, self.user_id = "t", "ada"
        self.calls = 0

    def context(self) -> CallContext:
        self.calls += 1
        return CallContext(
            run_id="r_1",
            session_id="s_1",
            agent_id="a_1",
            tenant=self.tenant,
            user_id=self.user_id,
            user_tier="",
            effect_id=f"r_1.{id(self)}.{self.calls}",
            plan=self.plan,
            started_ns=NOW,
            now_ns=self.now,
        )

    async def raw(self, data: bytes) -> tuple[str, bool]:
        output = await self.tool.call(data, self.context())
        return output.text, output.is_error

    async def ok(self, op: str, **fields: Any) -> Any:
        text, is_error = await self.raw(json.dumps({"op": op, "scope": "user", **fields}).encode())
        assert not is_error, text
        return json.loads(text)

    async def fails(self, op: str | None, **fields: Any) -> str:
        call = {"scope": "user", **({"op": op} if op is not None else {}), **fields}
        text, is_error = await self.raw(
            json.dumps({name: value for name, value in call.items() if value is not UNSET}).encode()
        )
        assert is_error, text
        return text


MakeAgent = Callable[..., Awaitable[Agent]]


@pytest.fixture
def make_agent() -> MakeAgent:
    async def make(
        *,
        environment: dict[str, str] | None = None,
        max_value_bytes: int = 0,
        max_scope_bytes: int = 0,
        **plan: Any,
    ) -> Agent:
        server = MemoryServer()
        store = server.connect("a")
        redactor = Redactor.from_environment(environment) if environment else None
        rows = RowStore(store.log, store.subjects, redactor=redactor)
        tool = Memory(rows, max_value_bytes=max_value_bytes, max_scope_bytes=max_scope_bytes)
        agent = Agent(tool, **plan)
        agent.server = server  # type: ignore[attr-defined]
        return agent

    return make


async def fill(agent: Agent, count: int) -> None:
    """Rows 0000, 0001, ... of the user scope, as another process would have written them."""
    store = agent.server.connect("filler")  # type: ignore[attr-defined]
    for number in range(count):
        event = state.MemoryWritten(
            tenant=agent.tenant,
            scope="user",
            scope_id=agent.user_id,
            key=f"{number:04}",
            op="set",
            value=Raw(b"%d" % number),
            created_at_ns=NOW,
            updated_at_ns=NOW,
        )
        subject = store.subjects.memory(agent.tenant, "user", agent.user_id, event.key)
        await store.log.append(subject, state.encode(event))


# --- who may do what, and in which order it is asked -------------------------------------------


@pytest.mark.parametrize(
    ("data", "start"),
    [
        (b"", "invalid input JSON"),
        (b"[]", "invalid input JSON"),
        (b'{"op":1}', "invalid input JSON"),
        (b'{"ttl":"60"}', "invalid input JSON"),
        (b'{"delta":3.5}', "invalid input JSON"),
        (b'{"delta":9223372036854775808}', "invalid input JSON"),
        (b'{"rank":{"recency_weight":"x"}}', "invalid input JSON"),
        (b'{"value":"\xff"}', "invalid input JSON"),
        (b'{"value":' + b"[" * 20_000 + b"]" * 20_000 + b"}", "invalid input JSON"),
        (b"{}", "missing required field: scope"),
        (b'{"op":"dance"}', "missing required field: scope"),
        (b'{"op":"get","scope":"global","key":"k"}', 'memory access denied: scope "global"'),
        (b'{"op":"get","scope":"run","key":"k"}', 'memory access denied: scope "run"'),
        (b'{"scope":"user"}', "missing required field: op"),
        (b'{"op":"","scope":"user"}', "missing required field: op"),
        (b'{"op":"get","scope":"user"}', "get: missing required field: key"),
        (b'{"op":"set","scope":"user","value":1}', "set: missing required field: key"),
        (b'{"op":"set","scope":"user","key":"k"}', "set: missing required field: value"),
        (b'{"op":"delete","scope":"user","key":""}', "delete: missing required field: key"),
        (b'{"op":"incr","scope":"user"}', "incr: missing required field: key"),
        (b'{"op":"merge","scope":"user","key":"k"}', "merge: missing required field: value"),
        (b'{"op":"append_dedupe","scope":"user","key":"k"}', "append_dedupe: missing"),
        (b'{"op":"bounded_list","scope":"user","key":"k","limit":3}', "bounded_list: missing"),
    ],
)
async def test_checks_come_in_order(make_agent: MakeAgent, data: bytes, start: str) -> None:
    text, is_error = await (await make_agent()).raw(data)
    assert is_error
    assert text.startswith(start)


async def test_an_unknown_op_lists_the_known_ones(make_agent: MakeAgent) -> None:
    text = await (await make_agent()).fails("dance")
    assert text.startswith('unknown op "dance" (must be one of: get, set, ')
    assert all(op in text for op in OPERATIONS)


async def test_without_a_list_of_scopes_everything_is_refused(make_agent: MakeAgent) -> None:
    agent = await make_agent(memory_scopes=())
    for op in ("get", "set", "list", "recall", "dance"):
        assert "memory_scopes" in await agent.fails(op, key="k", value=1)


async def test_a_scope_that_is_not_listed_is_named(make_agent: MakeAgent) -> None:
    text = await (await make_agent(memory_scopes=("agent",))).fails("get", key="k")
    assert '"user"' in text
    assert "memory_scopes" in text


async def test_a_scope_needs_its_identity(make_agent: MakeAgent) -> None:
    agent = await make_agent(memory_scopes=("agent", "user", "run"), agent="")
    agent.user_id = ""
    assert "user_id" in await agent.fails("get", key="k")
    assert "agent name" in await agent.fails("get", key="k", scope="agent")
    assert "sql_*" in await agent.fails("get", key="k", scope="run")


async def test_rows_are_kept_apart_by_tenant_scope_and_identity(make_agent: MakeAgent) -> None:
    agent = await make_agent()
    await agent.ok("set", key="k", value="user ada")
    assert await agent.ok("get", key="k", scope="agent") == MISSING
    agent.user_id = "bob"
    assert await agent.ok("get", key="k") == MISSING
    agent.user_id, agent.tenant = "ada", "other"
    assert await agent.ok("get", key="k") == MISSING
    agent.tenant = "t"
    assert (await agent.ok("get", key="k"))["value"] == "user ada"


async def test_a_server_without_a_store_says_so() -> None:
    text, is_error = await Agent(Memory(None)).raw(b"not even JSON")
    assert is_error
    assert "not configured" in text


def test_recovery_may_repeat_the_tool_by_its_effect_id() -> None:
    tool = Memory(None)
    assert tool.repeat is Repeat.OWN_STORE
    assert tool.side_effect_class == "state"
    schema = json.loads(tool.input_schema)
    assert schema["required"] == ["op", "scope"]
    assert schema["properties"]["op"]["enum"] == list(OPERATIONS)
    assert "path" not in schema["properties"]


# --- get, set, delete, list --------------------------------------------------------------------


async def test_set_then_get_returns_the_value_as_written(make_agent: MakeAgent) -> None:
    agent = await make_agent()
    written = b'{"n": 12345678901234567890, "f":1.0, "t":"\xc3\xa9\\u0000", "x":1e400}'
    text, is_error = await agent.raw(b'{"op":"set","scope":"user","key":"k","value":%b}' % written)
    assert (text, is_error) == ('{"ok":true}', False)
    text, _ = await agent.raw(b'{"op":"get","scope":"user","key":"k"}')
    assert text == '{"value":' + written.decode() + ',"expires_at":null}'


async def test_a_missing_key_is_no_error(make_agent: MakeAgent) -> None:
    agent = await make_agent()
    assert await agent.ok("get", key="k") == MISSING
    await agent.ok("set", key="k", value=None)
    assert await agent.ok("get", key="k") == MISSING


async def test_delete_tells_whether_there_was_a_row(make_agent: MakeAgent) -> None:
    agent = await make_agent()
    assert await agent.ok("delete", key="k") == {"deleted": False}
    await agent.ok("set", key="k", value=1)
    assert await agent.ok("delete", key="k") == {"deleted": True}
    assert await agent.ok("delete", key="k") == {"deleted": False}
    assert await agent.ok("get", key="k") == MISSING


async def test_an_expired_row_counts_as_present_until_it_would_be_swept(
    make_agent: MakeAgent,
) -> None:
    agent = await make_agent()
    for key in ("a", "b"):
        await agent.ok("set", key=key, value=1, ttl=10)
    agent.now += 11 * SECOND
    assert await agent.ok("get", key="a") == MISSING
    assert await agent.ok("delete", key="a") == {"deleted": True}
    agent.now += 900 * SECOND
    assert await agent.ok("delete", key="b") == {"deleted": False}


async def test_keys_may_hold_any_characters(make_agent: MakeAgent) -> None:
    agent = await make_agent()
    keys = ["a.b.>", "*", " ", "é/ü", "k" * 5000, 'quo"te', "\x00"]
    for number, key in enumerate(keys):
        await agent.ok("set", key=key, value=number)
    for number, key in enumerate(keys):
        assert (await agent.ok("get", key=key))["value"] == number
    listed = [entry["key"] for entry in (await agent.ok("list"))["entries"]]
    assert listed == sorted(keys, key=str.encode)


async def test_list_pages_by_literal_prefix(make_agent: MakeAgent) -> None:
    agent = await make_agent()
    assert await agent.ok("list") == {"entries": [], "truncated": False}
    for key in ("a%1", "a%2", "aX", "a_1", "A%3"):
        await agent.ok("set", key=key, value=1)
    listed = await agent.ok("list", prefix="a%")
    assert [entry["key"] for entry in listed["entries"]] == ["a%1", "a%2"]
    assert listed["entries"][0] == {"key": "a%1", "value": 1, "expires_at": None}
    assert not listed["truncated"]
    assert (await agent.ok("list", prefix="a%", limit=1))["truncated"]
    assert not (await agent.ok("list", prefix="a%", limit=2))["truncated"]


async def test_list_shows_a_hundred_by_default_and_a_thousand_at_most(
    make_agent: MakeAgent,
) -> None:
    agent = await make_agent()
    await fill(agent, 1001)
    for limit, expected in ((None, 100), (0, 100), (-5, 100), (1000, 1000), (5000, 1000)):
        listed = await agent.ok("list", limit=limit)
        assert len(listed["entries"]) == expected
        assert listed["truncated"]


@pytest.mark.parametrize(
    ("unix_ns", "text"),
    [
        (None, None),
        (NOW, "2026-05-01T10:00:00.123456789Z"),
        (NOW // SECOND * SECOND, "2026-05-01T10:00:00Z"),
        (NOW // SECOND * SECOND + 120_000_000, "2026-05-01T10:00:00.12Z"),
    ],
)
def test_timestamps_drop_trailing_zeros(unix_ns: int | None, text: str | None) -> None:
    assert timestamp(unix_ns) == text


# --- time to live ------------------------------------------------------------------------------


async def test_a_row_expires_at_its_time(make_agent: MakeAgent) -> None:
    agent = await make_agent()
    await agent.ok("set", key="k", value=1, ttl=60)
    got = await agent.ok("get", key="k")
    assert got == {"value": 1, "expires_at": "2026-05-01T10:01:00.123456789Z"}
    agent.now += 60 * SECOND - 1
    assert (await agent.ok("get", key="k"))["value"] == 1
    agent.now += 1
    assert await agent.ok("get", key="k") == MISSING
    assert await agent.ok("list") == {"entries": [], "truncated": False}


@pytest.mark.parametrize("ttl", [None, 0, -1])
async def test_set_without_ttl_clears_the_expiry(make_agent: MakeAgent, ttl: int | None) -> None:
    agent = await make_agent()
    await agent.ok("set", key="k", value=1, ttl=60)
    await agent.ok("set", key="k", value=2, ttl=ttl)
    assert (await agent.ok("get", key="k"))["expires_at"] is None


REDUCERS: list[tuple[str, dict[str, Any]]] = [
    ("incr", {}),
    ("merge", {"value": {"a": 1}}),
    ("append_dedupe", {"value": 1}),
    ("bounded_list", {"value": 1, "limit": 3}),
]


@pytest.mark.parametrize(("op", "fields"), REDUCERS)
async def test_reducers_keep_an_expiry_unless_given_one(
    make_agent: MakeAgent, op: str, fields: dict[str, Any]
) -> None:
    agent = await make_agent()
    await agent.ok(op, key="k", ttl=60, **fields)
    first = (await agent.ok("get", key="k"))["expires_at"]
    agent.now += 30 * SECOND
    await agent.ok(op, key="k", **fields)
    assert (await agent.ok("get", key="k"))["expires_at"] == first
    await agent.ok(op, key="k", ttl=60, **fields)
    assert (await agent.ok("get", key="k"))["expires_at"] > first


@pytest.mark.parametrize(("op", "fields"), REDUCERS)
async def test_reducers_take_an_expired_row_for_absent(
    make_agent: MakeAgent, op: str, fields: dict[str, Any]
) -> None:
    agent = await make_agent()
    fresh = await agent.ok(op, key="other", **fields)
    await agent.ok("set", key="k", value="of another type", ttl=1)
    agent.now += 2 * SECOND
    assert await agent.ok(op, key="k", **fields) == fresh
    assert (await agent.ok("get", key="k"))["expires_at"] is None


async def test_the_longest_ttl_does_not_overflow(make_agent: MakeAgent) -> None:
    agent = await make_agent()
    await agent.ok("set", key="k", value=1, ttl=2**63 - 1)
    assert (await agent.ok("get", key="k"))["expires_at"].startswith("2262-")


async def test_overwriting_keeps_the_creation_time(make_agent: MakeAgent) -> None:
    agent = await make_agent()
    await agent.ok("set", key="k", value=1, ttl=10)
    created = agent.now
    agent.now += 20 * SECOND
    await agent.ok("set", key="k", value=2)
    subjects = agent.server.subjects  # type: ignore[attr-defined]
    log = agent.server.connect("reader").log  # type: ignore[attr-defined]
    last = state.decode((await log.last(subjects.memory("t", "user", "ada", "k"))).data)
    assert last is not None
    assert (last.created_at_ns, last.updated_at_ns) == (created, agent.now)


# --- reducers ----------------------------------------------------------------------------------


async def test_incr_counts_from_zero(make_agent: MakeAgent) -> None:
    agent = await make_agent()
    assert await agent.ok("incr", key="k") == {"value": 1}
    assert await agent.ok("incr", key="k", delta=10) == {"value": 11}
    assert await agent.ok("incr", key="k", delta=0) == {"value": 11}
    assert await agent.ok("incr", key="k", delta=-20) == {"value": -9}
    await agent.ok("set", key="k", value=3.5)
    assert "incr: " in (text := await agent.fails("incr", key="k"))
    assert "not a JSON number" in text
    assert (await agent.ok("get", key="k"))["value"] == 3.5


async def test_merge_is_deep(make_agent: MakeAgent) -> None:
    agent = await make_agent()
    await agent.ok("merge", key="k", value={"a": {"x": 1}, "l": [1]})
    merged = await agent.ok("merge", key="k", value={"a": {"y": 2}, "l": [2], "n": None})
    assert merged == {"value": {"a": {"x": 1, "y": 2}, "l": [2], "n": None}}
    assert "must be a JSON object" in await agent.fails("merge", key="k", value=[1])
    await agent.ok("set", key="k", value=1)
    assert "not a JSON object" in await agent.fails("merge", key="k", value={})


async def test_append_dedupe_says_what_it_did(make_agent: MakeAgent) -> None:
    agent = await make_agent()
    first = await agent.ok("append_dedupe", key="k", value={"a": 1, "b": 2})
    assert first == {"appended": True, "value": [{"a": 1, "b": 2}]}
    again = await agent.ok("append_dedupe", key="k", value={"b": 2.0, "a": 1})
    assert again == {"appended": False, "value": [{"a": 1, "b": 2}]}
    await agent.ok("set", key="k", value={})
    assert "not a JSON array" in await agent.fails("append_dedupe", key="k", value=1)


async def test_bounded_list_drops_the_oldest(make_agent: MakeAgent) -> None:
    agent = await make_agent()
    for n in range(3):
        await agent.ok("bounded_list", key="k", value=n, limit=3)
    assert await agent.ok("bounded_list", key="k", value=3, limit=2) == {
        "dropped": 2,
        "value": [2, 3],
    }
    for limit in (None, 0, -1, 10_001):
        assert "limit must be" in await agent.fails("bounded_list", key="k", value=1, limit=limit)


async def test_a_hundred_concurrent_incr_of_a_new_key_end_at_a_hundred(
    make_agent: MakeAgent,
) -> None:
    agent = await make_agent()
    results = await asyncio.gather(*(agent.ok("incr", key="k") for _ in range(100)))
    assert sorted(result["value"] for result in results) == list(range(1, 101))


async def test_concurrent_merges_of_different_fields_lose_nothing(make_agent: MakeAgent) -> None:
    agent = await make_agent()
    await asyncio.gather(*(agent.ok("merge", key="k", value={f"f{n}": n}) for n in range(50)))
    assert (await agent.ok("get", key="k"))["value"] == {f"f{n}": n for n in range(50)}


# --- limits ------------------------------------------------------------------------------------


async def test_a_value_may_have_exactly_its_cap(make_agent: MakeAgent) -> None:
    agent = await make_agent(max_value_bytes=10)
    await agent.ok("set", key="k", value="x" * 8)
    assert "exceeds max" in await agent.fails("set", key="k", value="x" * 9)
    assert "exceeds max" in await agent.fails("merge", key="m", value={"a": 12345})
    await agent.ok("merge", key="m", value={"a": 1})
    assert "exceeds max" in await agent.fails("merge", key="m", value={"b": 1})
    await agent.ok("append_dedupe", key="l", value=1234567)
    assert "exceeds max" in await agent.fails("append_dedupe", key="l", value=12)
    await agent.ok("bounded_list", key="l", value=2345678, limit=1)


async def test_merge_caps_what_comes_in_and_not_only_the_result(make_agent: MakeAgent) -> None:
    agent = await make_agent(max_value_bytes=10)
    text, is_error = await agent.raw(
        b'{"op":"merge","scope":"user","key":"m","value":{"a":      1}}'
    )
    assert is_error
    assert "exceeds max" in text


async def test_a_scope_may_be_filled_exactly_to_its_quota(make_agent: MakeAgent) -> None:
    agent = await make_agent(max_scope_bytes=20)
    await agent.ok("set", key="é", value="x" * 16)
    assert "quota" in await agent.fails("set", key="k", value=1)
    await agent.ok("set", key="é", value="y" * 16)
    assert "quota" in await agent.fails("set", key="é", value="y" * 17)
    await agent.ok("set", key="other scope", value=1, scope="agent")
    await agent.ok("delete", key="é")
    await agent.ok("set", key="k", value=1)


async def test_an_agents_own_quota_overrides_the_default(make_agent: MakeAgent) -> None:
    agent = await make_agent(max_scope_bytes=10, memory_quota_bytes=100)
    await agent.ok("set", key="k", value="x" * 50)
    agent = await make_agent(max_scope_bytes=100, memory_quota_bytes=10)
    assert "quota" in await agent.fails("set", key="k", value="x" * 50)


async def test_expired_rows_do_not_count(make_agent: MakeAgent) -> None:
    agent = await make_agent(max_scope_bytes=20)
    await agent.ok("set", key="k", value="x" * 17, ttl=10)
    assert "quota" in await agent.fails("set", key="j", value=1)
    agent.now += 10 * SECOND
    await agent.ok("set", key="j", value="x" * 17)


async def test_incr_is_charged_thirty_two_bytes(make_agent: MakeAgent) -> None:
    assert await (await make_agent(max_scope_bytes=33)).ok("incr", key="k") == {"value": 1}
    assert "quota" in await (await make_agent(max_scope_bytes=32)).fails("incr", key="k")


@pytest.mark.parametrize(("op", "fields"), [("set", {"value": 1}), *REDUCERS])
async def test_a_scope_of_more_than_a_thousand_keys_takes_no_write_under_a_quota(
    make_agent: MakeAgent, op: str, fields: dict[str, Any]
) -> None:
    agent = await make_agent(memory_quota_bytes=1_000_000)
    await agent.ok("set", key="for a minute", value=1, ttl=60)
    await fill(agent, 999)
    await agent.ok(op, key="the thousand and first", **fields)
    refused = await agent.fails(op, key="one more", **fields)
    assert "quota" in refused
    assert "1001 live keys" in refused
    assert "1001 live keys" in await agent.fails(op, key="the thousand and first", **fields)
    assert (await agent.ok("get", key="0998"))["value"] == 998
    await agent.ok(op, key="one more", scope="agent", **fields)
    agent.now += 60 * SECOND
    await agent.ok(op, key="one more", **fields)
    assert "1001 live keys" in await agent.fails(op, key="one more", **fields)
    await agent.ok("delete", key="0000")
    await agent.ok(op, key="one more", **fields)


async def test_without_a_quota_a_scope_may_have_any_number_of_keys(make_agent: MakeAgent) -> None:
    agent = await make_agent()
    await fill(agent, 1001)
    await agent.ok("set", key="one more", value=1)


@pytest.mark.parametrize(("op", "fields"), REDUCERS)
async def test_a_reducer_over_quota_stores_nothing(
    make_agent: MakeAgent, op: str, fields: dict[str, Any]
) -> None:
    agent = await make_agent(max_scope_bytes=2)
    assert "quota" in await agent.fails(op, key="key", **fields)
    assert await agent.ok("get", key="key") == MISSING


# --- what this deployment does not have --------------------------------------------------------


async def test_vectors_are_refused_without_a_prefix(make_agent: MakeAgent) -> None:
    agent = await make_agent()
    assert await agent.fails("search") == "search: missing required field: query"
    text = await agent.fails("search", query="q")
    assert text.startswith("vector index not configured")
    assert "embedder" not in text  # one may be configured: this tool asks none


async def test_an_embedding_that_cannot_be_had_stops_the_write(make_agent: MakeAgent) -> None:
    agent = await make_agent(max_value_bytes=10)
    text = await agent.fails("set", key="k", value=1, embed=True)
    assert text.startswith("vector index not configured")
    assert await agent.ok("get", key="k") == MISSING
    assert "exceeds max" in await agent.fails("set", key="k", value="x" * 20, embed=True)
    await agent.ok("set", key="k", value=1, embed=False)


@pytest.mark.parametrize("op", ["add", "recall"])
async def test_the_memory_layer_is_refused_before_its_fields(
    make_agent: MakeAgent, op: str
) -> None:
    text = await (await make_agent()).fails(op)
    assert text.startswith("add/recall require a memory-layer backend")


async def test_path_names_are_refused_before_anything_is_written(make_agent: MakeAgent) -> None:
    agent = await make_agent()
    assert "not available" in await agent.fails("set", key="k", value=1, path="/a")
    assert await agent.ok("get", key="k") == MISSING
    assert "not available" in await agent.fails("get", path="/a")
    assert await agent.ok("get", key="k", path="/a") == MISSING


@pytest.mark.parametrize(
    ("extra", "fields", "fragment"),
    [
        ({}, {"scope": UNSET}, "missing required field: scope"),
        ({}, {}, "no sql_scopes"),
        ({"sql_scopes": Raw(b'["agent"]')}, {}, "not in this agent's sql_scopes"),
        ({"sql_scopes": Raw(b'["user"]')}, {}, "not enabled"),
    ],
)
async def test_sql_is_refused_gate_by_gate(
    make_agent: MakeAgent, extra: dict[str, Raw], fields: dict[str, Any], fragment: str
) -> None:
    agent = await make_agent(extra=extra, memory_scopes=())
    for op in ("sql_query", "sql_exec", "sql_begin", "sql_commit", "sql_rollback"):
        text = await agent.fails(op, **fields)
        assert text.startswith(f"{op}: ")
        assert fragment in text


# --- masks -------------------------------------------------------------------------------------


async def test_known_secrets_never_reach_the_log(make_agent: MakeAgent) -> None:
    secret = "s3cret-value-of-a-key"
    agent = await make_agent(environment={"SERVICE_API_KEY": secret})
    await agent.ok("set", key="k", value={"note": f"use {secret}", "n": 12345678901234567890})
    await agent.ok("set", key=f"of {secret}", value=1)
    merged = await agent.ok("merge", key="m", value={"a": secret})
    assert merged == {"value": {"a": "[redacted:SERVICE_API_KEY]"}}
    got = await agent.ok("get", key="k")
    assert got["value"] == {"note": "use [redacted:SERVICE_API_KEY]", "n": 12345678901234567890}
    assert (await agent.ok("get", key=f"of {secret}"))["value"] == 1
    messages = await agent.server.connect("reader").log.read("loom.mem.>")  # type: ignore[attr-defined]
    assert len(messages) == 3
    assert not any(secret.encode() in message.data for message in messages)


async def test_what_only_looks_like_a_secret_is_kept(make_agent: MakeAgent) -> None:
    agent = await make_agent(environment={"SERVICE_API_KEY": "s3cret-value-of-a-key"})
    value = {"password": "password=hunter2hunter2", "id": "sk-abcdefghijklmnopqrstuv"}
    await agent.ok("set", key="k", value=value)
    assert (await agent.ok("get", key="k"))["value"] == value
