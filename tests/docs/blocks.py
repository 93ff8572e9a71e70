"""The generated parts of the documents, each from the table of the code that it describes.

A block is a function without arguments that returns Markdown. Nothing here is prose: what a
table does not say belongs into the documents themselves.
"""

from __future__ import annotations

import ast
import json
from collections.abc import Callable, Iterable
from typing import get_args

from events import blobs, commit, streams, subjects
from events.commit import decode
from events.streams import RUNS, STREAMS, StreamSpec
from events.vocabulary import TYPES, Event, is_public
from loomcycle import cluster as members
from loomcycle import feed, sweeper, worker
from loomcycle.config.schema import ConcurrencyConfig, RuntimeConfig
from replay import machine
from replay.machine import MOVES, Effect
from replay.state import Phase
from tests.docs.layers import LAYERS, ROOT
from tests.golden.format import files, read


def layering() -> str:
    """Packages, and who imports whom."""
    edges = [f"    {package} --> {below}" for package in LAYERS for below in _direct(package)]
    return _mermaid("flowchart TD", *edges)


def packages() -> str:
    """What each package is and must not break, as its own ``__init__`` says."""
    rows = []
    for init in _packages():
        what, _, rest = (ast.get_docstring(ast.parse((ROOT / init).read_text())) or "").partition(
            "\n\n"
        )
        rule = rest.split("\n\n")[0]
        for opening in ("What must not break here: ", "What must not break: "):
            rule = rule.removeprefix(opening)
        rows.append((f"`{init.removesuffix('__init__.py')}`", _plain(what), _plain(_capital(rule))))
    return _table(("Package", "What it is", "What must not break in it"), rows)


def run_states() -> str:
    """The moves of ``replay.machine.MOVES`` that change the phase."""
    edges: dict[tuple[Phase, Phase], list[str]] = {}
    for phase, moves in MOVES.items():
        for event, targets in moves.items():
            for target in targets:
                if target is not phase:
                    edges.setdefault((phase, target), []).append(event)
    lines = [f"    [*] --> {Phase.NEW.value}"]
    lines += [
        f"    {a.value} --> {b.value} : {', '.join(names)}" for (a, b), names in edges.items()
    ]
    lines.append(f"    {Phase.FINISHED.value} --> [*]")
    return _mermaid("stateDiagram-v2", *lines)


def staying_events() -> str:
    """The events of ``MOVES`` after which a run stays in its phase."""
    rows = [
        (
            phase.value,
            ", ".join(f"`{name}`" for name, targets in moves.items() if phase in targets) or "–",
        )
        for phase, moves in MOVES.items()
    ]
    return _table(("Phase", "Events that leave a run in it"), rows)


def effects() -> str:
    """The effects that the machine can ask for."""
    rows = [(f"`{effect.__name__}`", _first_line(effect)) for effect in get_args(Effect)]
    return _table(("Effect", "What the owner does"), rows)


def stream_table() -> str:
    """``events.streams.STREAMS``; the RUNS streams, which differ in slots only, share a row."""
    rows = [_stream_row(f"{RUNS[0].name} … {RUNS[-1].name}", RUNS[0], _slots())]
    rows += [
        _stream_row(spec.name, spec, ", ".join(f"`{s}`" for s in spec.subjects))
        for spec in STREAMS
        if spec not in RUNS
    ]
    return _table(("Stream", "Subjects", "Kept", "Holds, and why so"), rows)


def event_catalogue() -> str:
    """Every type of ``events.vocabulary``."""
    rows = [
        (
            f"`{name}`",
            "clients" if is_public(name) else "kernel",
            str(cls.VERSION),
            ", ".join(f"`{field}`" for field in cls.__struct_fields__) or "–",
            _event_line(cls),
        )
        for name, cls in TYPES.items()
    ]
    return _table(("Event", "Seen by", "Version", "Fields", "Meaning"), rows)


def example_commit() -> str:
    """The last commit of a recorded one-turn run, its header line folded for reading."""
    golden = read([path for path in files() if path.stem == "one-turn"][-1])
    stored = golden.commits[-1]
    header, *bodies = stored.data.split("\n")
    head = json.loads(header)
    events = [json.dumps(event) for event in head.pop("events")]
    opening = json.dumps(head).removesuffix("}")
    folded = f'{opening}, "events": [\n' + ",\n".join(f"  {event}" for event in events) + "]}"
    lines = "\n".join([folded, *bodies])
    digest = decode(stored.data.encode(), stored.seq).hash
    return f"```json\n{lines}\n```\n\nIts hash, which the next commit would name: `{digest}`."


def numbers() -> str:
    """Constants that decide how long things take and how large they get."""
    concurrency, runtime = ConcurrencyConfig(), RuntimeConfig()
    rows = [
        ("lease renewed every", f"{members.RENEW_S:g} s", "`loomcycle/cluster.py`"),
        ("lease ends after silence of", f"{streams.LEASE_TTL_S:g} s", "`events/streams.py`"),
        ("queue item comes back after", f"{streams.ACK_WAIT_S:g} s", "`events/streams.py`"),
        ("full sweep every", f"{sweeper.FULL_SWEEP_S:g} s", "`loomcycle/sweeper.py`"),
        (
            "stopping worker waits for effects",
            f"{worker.LEAVE_GRACE_S:g} s",
            "`loomcycle/worker.py`",
        ),
        ("plain run outlives its last reader by", f"{runtime.reader_grace_ms} ms", "configuration"),
        ("a start waits for a slot at most", f"{concurrency.queue_timeout_ms} ms", "configuration"),
        ("claims without progress", str(machine.MAX_IDLE_CLAIMS), "`replay/machine.py`"),
        ("body kept inline up to", f"{commit.INLINE_LIMIT // 1024} KiB", "`events/commit.py`"),
        ("blob chunk", f"{blobs.CHUNK_BYTES // 1024} KiB", "`events/blobs.py`"),
        ("lanes of the start queue", str(subjects.LANES), "`events/subjects.py`"),
        ("items waiting for a slow reader", str(feed.MAX_WAITING), "`loomcycle/feed.py`"),
    ]
    return _table(("What", "How much", "Where"), rows)


BLOCKS: dict[str, Callable[[], str]] = {
    "layering": layering,
    "packages": packages,
    "run-states": run_states,
    "staying-events": staying_events,
    "effects": effects,
    "streams": stream_table,
    "events": event_catalogue,
    "example-commit": example_commit,
    "numbers": numbers,
}
"""Name in the marker -> what is written between the markers."""


def _direct(package: str) -> list[str]:
    """What ``package`` may import, without what that leads to anyway."""
    below = LAYERS[package]
    return [b for b in below if not any(b in LAYERS[other] for other in below)]


def _packages() -> list[str]:
    """``__init__`` files that say what must not break, outermost packages in layer order."""
    found = (
        str(path.relative_to(ROOT))
        for package in LAYERS
        for path in sorted((ROOT / package).rglob("__init__.py"))
        if "What must not break" in path.read_text()
    )
    return list(found)


def _slots() -> str:
    first, last = RUNS[0].subjects[0], RUNS[-1].subjects[-1]
    return f"`{first}` … `{last}`, {len(RUNS[0].subjects)} slots each"


def _stream_row(name: str, spec: StreamSpec, shown: str) -> tuple[str, str, str, str]:
    kept = [spec.storage, "until acked" if spec.retention == "workqueue" else ""]
    kept += [f"newest {spec.per_subject} per subject" if spec.per_subject else ""]
    kept += [f"{spec.max_age_s:g} s" if spec.max_age_s else ""]
    kept += ["full: refuses" if spec.refuse_new else ""]
    why = spec.why
    if spec in RUNS:
        why = why.replace(f"of slots {'00'} to {len(RUNS[0].subjects) - 1:02x}", "of their slots")
    return name, shown, ", ".join(filter(None, kept)), why


def _event_line(cls: type[Event]) -> str:
    return _first_line(cls) if cls.__doc__ else "–"


def _first_line(cls: type) -> str:
    """The first paragraph of a docstring."""
    return _plain((cls.__doc__ or "").strip().split("\n\n")[0])


def _plain(text: str) -> str:
    """One line, without Sphinx roles."""
    for role in (":func:", ":class:", ":data:"):
        text = text.replace(role, "")
    return " ".join(text.replace("``", "`").split())


def _capital(text: str) -> str:
    return text[:1].upper() + text[1:]


def _mermaid(kind: str, *lines: str) -> str:
    return "\n".join(["```mermaid", kind, *lines, "```"])


def _table(heads: Iterable[str], rows: Iterable[Iterable[str]]) -> str:
    heads = list(heads)
    lines = [heads, ["---"] * len(heads), *rows]
    return "\n".join("| " + " | ".join(_cell(c) for c in line) + " |" for line in lines)


def _cell(text: str) -> str:
    return text.replace("|", "\\|")
