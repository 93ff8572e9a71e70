"""Spans are a fold of a run's journal: what it tells becomes a span, and nothing else does."""

from __future__ import annotations

from collections.abc import Iterator
from hashlib import sha256
from pathlib import Path
from typing import Any

import msgspec
import pytest
from msgspec import Raw

from events.commit import Commit, decode, encode_commit, new_event
from events.plan import RunPlan, decode_plan
from events.vocabulary import (
    Event,
    ModelAnswered,
    ParentCall,
    RunClaimed,
    RunFinished,
    RunStarted,
    Started,
    ToolCall,
    ToolResult,
    ToolUse,
)
from loomcycle.loading import opening
from loomcycle.tracing.spans import (
    ITERATION,
    MCP_CALL,
    PROVIDER_CALL,
    RUN,
    TOOL_CALL,
    RunSpans,
    Span,
    cut,
    is_sampled,
    span_id_of,
    trace_id_of,
)
from tests.golden.format import DIRECTORY, Golden, files, read
from tests.golden.stage import CREDENTIAL, SECRET

MS = 1_000_000
FILES = list(files())


def golden(name: str) -> Golden:
    return read(DIRECTORY / "0.1.0" / f"{name}.jsonl")


def commits_of(golden: Golden) -> list[Commit]:
    commits = [decode(c.data.encode(), c.seq) for c in golden.journal(golden.expected.run)]
    for commit in commits:
        commit.fill({name: golden.blobs[name] for name in commit.blobs()})
    return commits


def spans_of(golden: Golden) -> list[Span]:
    commits = commits_of(golden)
    started = opening(commits[0])
    return folded(decode_plan(golden.blobs[started.plan]) if started else PLAN, commits)


def folded(plan: RunPlan, commits: list[Commit]) -> list[Span]:
    fold = RunSpans(plan)
    for commit in commits:
        fold.add(commit)
    return fold.spans


def tree(spans: list[Span]) -> list[str]:
    """A line for each span in order: indented by its depth, with its times in milliseconds."""
    ids = {span.span_id: span for span in spans}
    begun = spans[0].start

    def depth(span: Span) -> int:
        return 1 + depth(ids[span.parent_id]) if span.parent_id in ids else 0

    return [
        f"{'  ' * depth(s)}{s.name.removeprefix('loomcycle.')} "
        f"{(s.start - begun) // MS}-{(s.end - begun) // MS}{'' if s.error is None else ' !'}"
        for s in spans
    ]


def named(spans: list[Span], name: str) -> list[Span]:
    return [span for span in spans if span.name == name]


# --- journals made here -------------------------------------------------------------------

PLAN = RunPlan(agent="one", provider="openai", model="gpt-x", effort="high")
STARTED = RunStarted(
    run="r_1", session="s_1", agent="one", agent_id="a_1", plan="p", user_id="u", started_ns=90 * MS
)


def journal(*batches: tuple[int, list[Event]]) -> list[Commit]:
    """Commits of (milliseconds, events)."""
    commits: list[Commit] = []
    n = 1
    for c, (ms, events) in enumerate(batches, 1):
        data, *_ = encode_commit(
            run="r_1",
            c=c,
            prev=commits[-1].hash if commits else "",
            epoch=1,
            writer="p",
            first_n=n,
            ts=ms * MS,
            events=[new_event(event) for event in events],
        )
        n += len(events)
        commits.append(decode(data))
    return commits


def use(name: str, tool_use_id: str = "t") -> ToolUse:
    return ToolUse(tool_use_id, name, Raw(b"{}"))


def called(name: str) -> list[Event]:
    answered = ModelAnswered(request="", iteration=0, stop_reason="tool_use")
    return [ToolCall(tool_use=use(name)), answered]


ENDED = RunFinished(status="completed", stop_reason="end_turn")


# --- the shape of a trace -----------------------------------------------------------------


def test_a_call_hangs_under_its_turn_and_a_turn_under_its_run() -> None:
    spans = spans_of(golden("parallel-tools"))
    assert tree(spans) == [
        "run 0-182",
        "  iteration 0-179",
        "    provider.call 0-176",
        "    tool.call 176-179",
        "    tool.call 176-179",
        "    tool.call 176-179 !",
        "  iteration 179-182",
        "    provider.call 179-182",
    ]
    assert [s.attributes["loomcycle.iteration"] for s in named(spans, ITERATION)] == [0, 1]
    failed = spans[5]
    assert failed.attributes == {"loomcycle.tool": "Nowhere"}
    assert failed.error == "tool not found: Nowhere"


def test_a_run_says_whose_it_is_and_what_it_came_to() -> None:
    [run] = named(spans_of(golden("reasoning")), RUN)
    facts = opening(commits_of(golden("reasoning"))[0])
    assert facts is not None
    assert run.attributes == {
        "loomcycle.run_id": facts.run,
        "loomcycle.agent_id": facts.agent_id,
        "loomcycle.agent_name": "thinker",
        "loomcycle.user_id": "golden-user",
        "loomcycle.queue_wait_ms": 1,
        "loomcycle.input_tokens": 20,
        "loomcycle.output_tokens": 10,
        "loomcycle.cache_read_tokens": 7,
        "loomcycle.stop_reason": "end_turn",
    }
    assert (run.parent_id, run.error) == (0, None)


def test_a_child_hangs_under_the_call_of_its_parent() -> None:
    [run, *_] = spans_of(golden("child"))
    facts = opening(commits_of(golden("child"))[0])
    assert facts is not None
    assert facts.parent is not None
    assert run.parent_id == span_id_of(TOOL_CALL, facts.parent.run, facts.parent.n)
    assert run.trace_id == trace_id_of(
        RunStarted(run=facts.root, session="", agent="", agent_id="", plan="")
    )
    assert run.attributes["loomcycle.parent_agent_id"] == facts.parent_agent_id


def test_the_call_of_a_parent_has_the_id_that_its_children_name() -> None:
    commits = journal((100, [STARTED, Started()]), (120, called("Agent")), (150, [ENDED]))
    [call] = named(folded(PLAN, commits), TOOL_CALL)
    child = msgspec.structs.replace(STARTED, run="r_2", root="r_1", parent=ParentCall("r_1", 3))
    [run] = folded(PLAN, journal((130, [child, Started()]), (140, [ENDED])))
    assert (run.trace_id, run.parent_id) == (call.trace_id, call.span_id)


def test_every_attempt_is_a_call_and_waits_between_them_are_none() -> None:
    assert tree(spans_of(golden("rate-limited"))) == [
        "run 0-1006",
        "  iteration 0-1006",
        "    provider.call 0-2 !",
        "    provider.call 1002-1006",
    ]
    retried = spans_of(golden("retried"))
    assert tree(retried)[2:] == [
        "    provider.call 0-3 !",
        "    provider.call 103-107 !",
        "    provider.call 207-212",
    ]
    assert next(s.error for s in named(retried, PROVIDER_CALL)) == "anthropic 503: busy"


def test_a_call_names_the_pair_that_it_was_made_to() -> None:
    calls = named(spans_of(golden("fallen-back")), PROVIDER_CALL)
    assert [list(call.attributes.values()) for call in calls[1:]] == [
        ["anthropic", "m-1", "medium"],
        ["deepseek", "deepseek-chat"],
    ]


def test_the_turns_of_a_program_are_calls_of_its_code() -> None:
    commits = commits_of(golden("program"))
    facts = opening(commits[0])
    assert facts is not None
    plan = decode_plan(golden("program").blobs[facts.plan])
    calls = named(folded(plan, commits), PROVIDER_CALL)
    assert len(calls) == 3
    assert calls[0].attributes == {
        "loomcycle.provider": "code-js",
        "loomcycle.model": "loomcycle/code-js",
        "loomcycle.provider.kind": "synthetic-code",
        "loomcycle.provider.code_hash": sha256((plan.code or "").encode()).hexdigest(),
    }


def test_a_compaction_is_an_event_of_the_turn_that_it_precedes() -> None:
    spans = spans_of(golden("compacted"))
    assert tree(spans)[7:11] == [
        "  iteration 13-27",
        "    provider.call 13-19",
        "    provider.call 19-25",
        "    tool.call 25-27",
    ]
    [event] = named(spans, ITERATION)[2].events
    assert (event.name, event.attributes) == (
        "context.compaction",
        {
            "compaction.trigger": "auto",
            "compaction.before_tokens": 35,
            "compaction.after_tokens": 40,
        },
    )
    models = [s.attributes["loomcycle.model"] for s in named(spans, PROVIDER_CALL)]
    assert models[2:4] == ["claude-small", "claude-golden"]


def test_a_compaction_between_turns_is_an_event_of_the_run() -> None:
    spans = spans_of(golden("compacted-by-hand"))
    assert [event.name for event in spans[0].events] == ["context.compaction"]
    assert not any(span.events for span in spans[1:])
    assert "  provider.call 30-34" in tree(spans)


def test_a_summary_that_failed_is_a_failed_call() -> None:
    calls = named(spans_of(golden("not-compacted")), PROVIDER_CALL)
    assert [c.error for c in calls if c.attributes["loomcycle.model"] == "claude-small"] == [
        'compaction summary failed (auto): anthropic 500: {"error": {"type": "api_error", '
        '"message": "no"}}',
        None,
    ]


# --- ends and detours ---------------------------------------------------------------------


def test_a_cancelled_run_has_not_failed() -> None:
    spans = spans_of(golden("cancelled"))
    assert tree(spans) == ["run 0-11", "  iteration 0-11", "    provider.call 0-11"]
    assert spans[0].attributes["loomcycle.stop_reason"] == "cancelled"


def test_a_call_that_no_event_tells_of_is_not_invented() -> None:
    cancelled = RunFinished(status="cancelled", stop_reason="enough")
    spans = folded(PLAN, journal((100, [STARTED, Started()]), (200, [cancelled])))
    assert tree(spans) == ["run 0-100", "  iteration 0-100"]
    assert spans[0].attributes["loomcycle.queue_wait_ms"] == 10


def test_a_failed_run_says_why() -> None:
    spans = spans_of(golden("over-budget"))
    assert (spans[0].error or "").startswith("budget exceeded: max_tokens_total is 5000")
    assert spans[0].attributes["loomcycle.stop_reason"] == "budget_exceeded"
    assert len(named(spans, ITERATION)) == 1
    failed = spans_of(golden("refused-by-vendor"))
    assert tree(failed) == ["run 0-3 !", "  iteration 0-3", "    provider.call 0-3 !"]


def test_a_run_that_moved_has_one_trace_and_its_call_begins_again() -> None:
    spans = spans_of(golden("taken-over"))
    assert len({span.trace_id for span in spans}) == 1
    assert tree(spans)[4:] == ["  iteration 478-763", "    provider.call 710-763"]


def test_calls_that_wait_span_the_wait() -> None:
    assert tree(spans_of(golden("question-answered")))[1:5] == [
        "  iteration 0-1030",
        "    provider.call 0-4",
        "    tool.call 4-1030",
        "    tool.call 4-10",
    ]


def test_the_turns_of_an_interactive_run_leave_out_the_waits_for_people() -> None:
    assert tree(spans_of(golden("talked-to"))) == [
        "run 0-45",
        "  iteration 0-6",
        "    provider.call 0-6",
        "  iteration 26-32",
        "    provider.call 26-32",
    ]


def test_a_call_without_a_result_ends_with_its_run() -> None:
    commits = journal(
        (100, [STARTED, Started()]),
        (120, called("Bash")),
        (130, [RunFinished(status="cancelled")]),
    )
    assert tree(folded(PLAN, commits))[3:] == ["    tool.call 20-30"]


def test_clocks_of_two_owners_make_no_span_that_ends_before_it_begins() -> None:
    commits = journal(
        (100, [STARTED, Started()]),
        (120, called("Read")),
        (90, [RunClaimed(worker="q"), ToolResult(tool_use=use("Read"))]),
        (95, [ENDED]),
    )
    assert all(span.start <= span.end for span in folded(PLAN, commits))


def test_a_tool_of_an_mcp_server_has_a_span_of_its_own() -> None:
    result = ToolResult(tool_use=use("mcp__my-files__read__all"), text="no\nwhy", is_error=True)
    commits = journal(
        (100, [STARTED, Started()]),
        (120, called("mcp__my-files__read__all")),
        (140, [result]),
        (150, [ENDED]),
    )
    spans = folded(PLAN, commits)
    [tool], [mcp] = named(spans, TOOL_CALL), named(spans, MCP_CALL)
    assert mcp.parent_id == tool.span_id
    assert mcp.attributes == {"loomcycle.mcp_server": "my-files", "loomcycle.mcp_tool": "read__all"}
    assert (tool.error, mcp.error) == ("no", "no")


def test_what_is_added_behind_the_end_is_no_part_of_the_trace() -> None:
    spans = spans_of(golden("compacted-after-its-end"))
    assert not any(span.events for span in spans)
    assert spans[0].end == max(span.end for span in spans)


def test_a_start_that_was_withdrawn_has_no_spans() -> None:
    assert spans_of(golden("withdrawn")) == []


# --- every golden journal -----------------------------------------------------------------

every_journal = pytest.mark.parametrize("path", FILES, ids=[path.stem for path in FILES])


@every_journal
def test_spans_of_every_journal_are_whole(path: Path) -> None:
    spans = spans_of(read(path))
    ids = [span.span_id for span in spans]
    assert len(set(ids)) == len(ids)
    for span in spans[1:]:
        assert span.parent_id in ids
        assert spans[0].start <= span.start <= span.end <= spans[0].end
    assert spans == spans_of(read(path))


def said(golden: Golden) -> Iterator[str]:
    """Everything that people, models and tools said, where it is long enough to be found."""
    commits = commits_of(golden)
    started = opening(commits[0])
    if started is not None:
        yield from (block.text for block in decode_plan(golden.blobs[started.plan]).system)
    for commit in commits:
        for record in commit.records():
            body: Any = msgspec.json.decode(record.body)
            match record.type:
                case "text":
                    yield body["text"]
                case "user_input":
                    for segment in body.get("payload", ()):
                        yield from (block["text"] for block in segment["content"])
                case "tool_call":
                    yield from (v for v in body["tool_use"]["input"].values() if type(v) is str)
                case "tool_result" if not body.get("is_error"):
                    yield body.get("text", "")
                case "context_compaction":
                    yield body["context_compaction"]["summary"]


@every_journal
def test_no_span_holds_what_was_said(path: Path) -> None:
    spans = spans_of(read(path))
    attributes = [str(v) for s in spans for v in s.attributes.values()]
    attributes += [str(v) for s in spans for event in s.events for v in event.attributes.values()]
    for text in said(read(path)):
        if len(text) > 8:
            assert not any(text in attribute for attribute in attributes)
    everything = repr(spans)
    for secret in (SECRET, CREDENTIAL, "swordfish"):
        assert secret not in everything


# --- ids, samples, cuts -------------------------------------------------------------------


def test_children_are_sampled_with_the_run_at_the_top() -> None:
    for k in range(50):
        root = msgspec.structs.replace(STARTED, run=f"r_{k}")
        child = msgspec.structs.replace(STARTED, run=f"r_c{k}", root=f"r_{k}")
        assert trace_id_of(root) == trace_id_of(child)


@pytest.mark.parametrize(
    ("ratio", "share"), [(0.0, (0, 0)), (0.25, (200, 300)), (1.0, (1000,) * 2)]
)
def test_a_ratio_is_a_share_of_the_traces(ratio: float, share: tuple[int, int]) -> None:
    runs = [msgspec.structs.replace(STARTED, run=f"r_{k}") for k in range(1000)]
    sampled = sum(is_sampled(trace_id_of(run), ratio) for run in runs)
    assert share[0] <= sampled <= share[1]


def test_a_trace_id_has_128_bits_and_a_span_id_64() -> None:
    assert trace_id_of(STARTED) < 2**128
    assert 0 < span_id_of(RUN, "r_1", 1) < 2**64
    assert span_id_of(RUN, "r_1", 1) != span_id_of(ITERATION, "r_1", 1)


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("", ""),
        ("x" * 500, "x" * 500),
        ("x" * 501, "x" * 497 + "…"),
        ("ü" * 250, "ü" * 250),
        ("ü" * 251, "ü" * 248 + "…"),
    ],
)
def test_a_description_is_cut_between_characters(text: str, shown: str) -> None:
    assert cut(text) == shown
    assert len(cut(text).encode()) <= 500


def test_a_tool_error_shows_its_first_line_only_and_names_are_bounded() -> None:
    result = ToolResult(tool_use=use("N" * 900), text=" e" * 900 + "\nsecond", is_error=True)
    commits = journal(
        (100, [STARTED, Started()]), (120, called("N" * 900)), (140, [result]), (150, [ENDED])
    )
    [tool] = named(folded(PLAN, commits), TOOL_CALL)
    assert len(str(tool.attributes["loomcycle.tool"]).encode()) == 128
    assert tool.error is not None
    assert len(tool.error.encode()) <= 500
    assert "second" not in tool.error
