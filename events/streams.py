"""The one table of all streams: what each holds, how the server keeps it, and why.

``python -m events.streams DIRECTORY`` writes it as JSON for operators. The number of RUNS streams
stands here and nowhere else. This module talks to no server.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any, Literal

import msgspec
from msgspec import Struct

from events.subjects import STATE_AREAS, Subjects

LEASE_TTL_S = 4.0
"""A lease that was not renewed for so long is free again."""

ACK_WAIT_S = 10.0
"""A work item whose holder is silent for so long is delivered again."""

WAKE_REQUEST_S = 2.0
"""A worker's standing request for wakes ends after so long, and it must ask again.

Shorter than what is left of its lease when it falls silent: whoever stands still has no request
left by the time its runs are woken elsewhere, so none of these wakes goes to it.
"""

REQUEST_S = 30.0
"""The same for other queues, which wait for nobody's lease; starts have 32 lanes to ask."""

DUPLICATE_WINDOW_S = 120.0
"""For so long a repeated ``Nats-Msg-Id`` is recognised."""

RUN_STREAMS = 4
"""The server flushes one message at a time per stream, so runs are spread over several."""

RUN_SEQ_SPAN = 2**38
"""RUNS-k starts at sequence k * RUN_SEQ_SPAN, so sequences are unique over all of them."""

_SLOTS = 256
_SECOND_NS = 1_000_000_000


class StreamSpec(Struct, frozen=True, kw_only=True):
    """One stream. ``subjects`` are without the deployment's prefix.

    ``per_subject``: messages kept per subject (0 = all). ``max_age_s``: 0 = for ever.
    ``refuse_new``: a full stream refuses instead of dropping its oldest message.
    ``schedules``: messages may ask for delayed delivery (``Nats-Schedule``).
    """

    name: str
    subjects: tuple[str, ...]
    why: str
    storage: Literal["file", "memory"] = "file"
    retention: Literal["limits", "workqueue"] = "limits"
    first_seq: int = 0
    per_subject: int = 0
    max_age_s: float = 0.0
    refuse_new: bool = False
    schedules: bool = False
    direct: bool = True
    compression: Literal["none", "s2"] = "none"
    duplicate_window_s: float = DUPLICATE_WINDOW_S

    @property
    def first(self) -> int:
        """Sequence of the first message; a stream that ends before it is empty."""
        return max(self.first_seq, 1)

    def stream(self, prefix: str) -> str:
        """The name on the server."""
        return f"{prefix}-{self.name}"

    def config(
        self, prefix: str, replicas: int = 1, *, total: int = 0, per_user: int = 0
    ) -> dict[str, Any]:
        """JetStream's stream configuration. ``total`` and ``per_user`` bound a start queue."""
        per_subject = per_user or self.per_subject or -1
        config: dict[str, Any] = {
            "name": self.stream(prefix),
            "description": self.why,
            "subjects": [f"{prefix}.{s}" for s in self.subjects],
            "storage": self.storage,
            "retention": self.retention,
            "discard": "new" if self.refuse_new else "old",
            "max_msgs": total or -1,
            "max_msgs_per_subject": per_subject,
            "max_bytes": -1,
            "max_age": int(self.max_age_s * _SECOND_NS),
            "max_consumers": -1,
            "duplicate_window": int(self.duplicate_window_s * _SECOND_NS),
            "num_replicas": replicas,
            "allow_direct": self.direct,
            "compression": self.compression,
        }
        if self.refuse_new and per_user:
            config["discard_new_per_subject"] = True
        if self.first_seq:
            config["first_seq"] = self.first_seq
        if self.schedules:
            config["allow_msg_schedules"] = True
        return config


def _runs(index: int) -> StreamSpec:
    width = _SLOTS // RUN_STREAMS
    slots = range(index * width, (index + 1) * width)
    return StreamSpec(
        name=f"RUNS-{index}",
        subjects=tuple(f"run.{s:02x}.>" for s in slots),
        first_seq=index * RUN_SEQ_SPAN,
        why=(
            f"Journals, inboxes and sessions of slots {slots[0]:02x} to {slots[-1]:02x}. No limit"
            " and no roll-up: only the archive removes messages. Inbox messages carry ids for the"
            " two-minute duplicate window, journals carry none."
        ),
    )


RUNS = tuple(_runs(index) for index in range(RUN_STREAMS))

STARTS = StreamSpec(
    name="STARTS",
    subjects=("start.>",),
    storage="memory",
    retention="workqueue",
    refuse_new=True,
    why=(
        "Starts that wait for a slot. Bounds refuse instead of dropping: back-pressure in all,"
        " the user's cap per subject. In memory: an item is no promise yet, and the sweeper"
        " posts lost ones again."
    ),
)

WAKES = StreamSpec(
    name="WAKES",
    subjects=("wake.>",),
    storage="memory",
    retention="workqueue",
    why="Runs to advance. No bound: a wake is never refused. In memory: derived from the views.",
)

CHANNELS = StreamSpec(
    name="CHANNELS",
    subjects=("chan.>",),
    schedules=True,
    why=(
        "Channel messages, cursors and trims, all of them: expiry is evaluated at read and trims"
        " are events. Deferred messages are schedules inside this stream, for a schedule cannot"
        " target another one."
    ),
)

DEFS = StreamSpec(
    name="DEFS",
    subjects=("def.>",),
    why="Definition events of every kind, tokens included, for ever.",
)

STATE = StreamSpec(
    name="STATE",
    subjects=tuple(f"{area}.>" for area in sorted(STATE_AREAS)),
    why=(
        "Memory, names, documents, evaluations, hooks, SQL writes, agent handles and budgets with"
        " their full history: recovery finds its own effects in it, so never one message per"
        " subject."
    ),
)

TIMERS = StreamSpec(
    name="TIMERS",
    subjects=("timer.>", "due.>"),
    storage="memory",
    retention="workqueue",
    schedules=True,
    why=(
        "timer.* holds one schedule per subject until it fires into due.*, a work queue. In"
        " memory: derived from the views. A scheduling stream cannot refuse new messages."
    ),
)

BLOBS = StreamSpec(
    name="BLOBS",
    subjects=("blob.>",),
    compression="s2",
    why=(
        "Payloads over 256 KiB by SHA-256, in chunks; the last chunk's subject ends in .z and is"
        " written last. Compressed because it is mostly text."
    ),
)

SEALS = StreamSpec(
    name="SEALS",
    subjects=("seal.>",),
    per_subject=1,
    direct=False,
    why=(
        "Encrypted credentials and masked values of live runs, on disk, newest value only, purged"
        " at the run's end. No direct gets: a reader must see what was sealed just before."
    ),
)

LEASES = StreamSpec(
    name="LEASES",
    subjects=("lease.>",),
    storage="memory",
    per_subject=1,
    max_age_s=LEASE_TTL_S,
    duplicate_window_s=1.0,
    why=(
        "Who is alive: one message per name, gone when it was not renewed for its age. In memory:"
        " after a restart nobody is judged dead for one age."
    ),
)

STREAMS: tuple[StreamSpec, ...] = (
    *RUNS,
    STARTS,
    WAKES,
    CHANNELS,
    DEFS,
    STATE,
    TIMERS,
    BLOBS,
    SEALS,
    LEASES,
)

BY_NAME = {spec.name: spec for spec in STREAMS}

RUN_STREAM_NAMES = tuple(spec.name for spec in RUNS)

_BY_FAMILY = {
    pattern.split(".", 1)[0]: spec
    for spec in STREAMS
    if spec not in RUNS
    for pattern in spec.subjects
}


def stream_of(subjects: Subjects, subject: str) -> StreamSpec:
    """The stream that holds ``subject``, a subject or a filter within one stream.

    Raises ValueError for a foreign subject and for a filter over several RUNS streams.
    """
    family, second = subjects.family(subject)
    if family == "run":
        try:
            return RUNS[int(second, 16) * RUN_STREAMS // _SLOTS]
        except (ValueError, IndexError):
            raise ValueError(f"subject {subject!r} names no slot") from None
    spec = _BY_FAMILY.get(family)
    if spec is None:
        raise ValueError(f"subject {subject!r} belongs to no stream")
    return spec


def export(prefix: str = "loom", replicas: int = 1) -> dict[str, bytes]:
    """File name -> JSON of every stream's configuration, as ``nats stream add --config`` reads."""
    return {
        f"{spec.name}.json": msgspec.json.format(
            msgspec.json.encode(spec.config(prefix, replicas)), indent=2
        )
        + b"\n"
        for spec in STREAMS
    }


def main(directory: str = "nats") -> None:
    """Write the JSON files of :func:`export` into ``directory``."""
    target = Path(directory)
    for name, text in export().items():
        (target / name).write_bytes(text)


if __name__ == "__main__":
    main(*sys.argv[1:2])
