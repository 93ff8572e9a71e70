"""What must hold of every log that a test leaves behind, and of a stream and its transcript."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from events.embedded import EmbeddedServer
from events.log import EventStore
from events.nats_store import connect
from events.seals import load_master_key
from replay.verify import Report
from tests.wire.gateway import Json, SseFrame
from tests.wire.journals import proofs

BESIDE_THE_LOG = ("session", "agent", "text_reset")
"""Frames that no transcript has."""

WITHOUT_FRAME = ("user_input", "system_prompt")
"""Rows of a transcript that the stream of a fresh run does not repeat."""


async def prove_everything(store: EventStore) -> list[Report]:
    """Verify every journal in ``store``; asserts that each is proven and complete."""
    reports = await proofs(store)
    assert reports
    for report in reports:
        assert report.ok, report
        assert report.complete, report
    return reports


@asynccontextmanager
async def open_log(data_dir: Path) -> AsyncIterator[EventStore]:
    """The log of a data directory, whether its server runs already or not."""
    server = await EmbeddedServer.start(data_dir)
    try:
        store = await connect(
            server.url,
            token=server.token,
            name="proofs",
            prefix="loom",
            master_key=load_master_key(data_dir),
        )
        try:
            yield store
        finally:
            await store.close()
    finally:
        await server.stop()


def text_of(frames: Iterable[SseFrame]) -> str:
    """The text that a client which obeys ``text_reset`` shows, all turns in a row."""
    shown, turn = "", ""
    for frame in frames:
        match frame.event:
            case "text":
                turn += frame.data["text"]
            case "text_reset":
                turn = ""
            case "usage" | "tool_call" | "done" | "error":
                shown, turn = shown + turn, ""
    return shown + turn


def whole_texts(frames: Iterable[SseFrame]) -> list[tuple[str, Any]]:
    """(event, data) with the pieces of each text joined, as a transcript has them."""
    joined: list[tuple[str, Any]] = []
    for frame in frames:
        if frame.event in BESIDE_THE_LOG:
            continue
        if frame.event == "text" and joined and joined[-1][0] == "text":
            text = joined[-1][1]["text"] + frame.data["text"]
            joined[-1] = ("text", {"type": "text", "text": text})
        else:
            joined.append((frame.event, frame.data))
    return joined


def rows(transcript: Json) -> list[tuple[str, Any]]:
    """(event, data) of a transcript, as :func:`whole_texts` shows a stream."""
    return [
        (row["type"], {k: v for k, v in row["event"].items() if k != "attempt"})
        for row in transcript["events"]
        if row["type"] not in WITHOUT_FRAME
    ]


def assert_durable_ids(frames: Sequence[SseFrame], transcript: Json) -> None:
    """Every frame but a delta carries the seq of its row."""
    seqs = {row["seq"]: row["type"] for row in transcript["events"]}
    for frame in frames:
        if frame.event not in BESIDE_THE_LOG and "." not in frame.id:
            assert seqs[int(frame.id)] == frame.event
