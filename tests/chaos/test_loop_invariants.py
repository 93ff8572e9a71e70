"""The judge of children, questions, inputs and hooks finds what it is there to find."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from msgspec import Raw

from events import state
from events import vocabulary as v
from events.commit import decode
from tests.bench.sse import Frame
from tests.chaos.agents import LEVELS, QUESTIONS
from tests.chaos.clients import Tracked
from tests.chaos.invariants import Log
from tests.chaos.loop_invariants import loop_violations
from tests.chaos.people import Notes
from tests.integration.journals import Journal, called, ending, finished, opening, said

WIDTH = 2
ROOT = "r_00"


class Scene:
    """A log, runs that clients were promised, and the notes of people; all is well in it."""

    def __init__(self) -> None:
        self.log, self.notes = Log(), Notes()
        self.runs = [self._tree(), self._asking(), self._talker(), self._hooked()]

    def verdicts(self) -> list[str]:
        return loop_violations(self.log, self.runs, self.notes)

    def store(self, run: str, *events: v.Event) -> None:
        """One commit more."""
        commits = self.log.journals["", run]
        journal = Journal(run)
        journal.c, journal.n = len(commits), sum(len(c.bodies) for c in commits)
        commits.append(decode(journal.commit(*events), len(commits) + 1))

    def drop(self, run: str, kind: type[v.Event]) -> None:
        """As if no commit with such an event had been made."""
        commits = self.log.journals["", run]
        kept = [c for c in commits if not any(isinstance(r.event, kind) for r in c.records())]
        self.log.journals["", run] = kept

    def _tree(self) -> Tracked:
        self._branch(ROOT, LEVELS, opening(ROOT))
        text = Frame("9", "text", b'{"type":"text","text":"%d"}' % WIDTH**LEVELS)
        return Tracked("tree", width=WIDTH, run_id=ROOT, seen=[text], ended=True)

    def _branch(self, run: str, levels: int, events: list[v.Event]) -> None:
        self.store(run, *events, called("t", "Agent"))
        call = len(events) + 1
        for index in range(WIDTH if levels else 0):
            child = f"{run}{index}"
            parent = v.ParentCall(run, call, index)
            ids = {"run": child, "session": "s", "agent": "a", "agent_id": "a"}
            self.store(run, v.ChildStarted(tool_use_id="t", index=index, **ids))
            self._branch(child, levels - 1, opening(child, parent=parent))
            self.store(run, v.ChildFinished(tool_use_id="t", index=index, run=child, ok=True))
        self.store(run, finished())

    def _asking(self) -> Tracked:
        run = "r_asks"
        self.store(run, *opening(run))
        for ident in map(str, range(QUESTIONS)):
            asked = v.InterruptionBody(interrupt_id=ident, kind="question", priority="normal")
            self.store(run, v.InterruptionPending(interruption=asked))
            answer = f"answer-{ident}"
            self.notes.sent[ident] = {answer, "another"}
            self.notes.taken[ident] = [answer]
            self.store(run, v.InterruptClosed(interrupt_id=ident, status="resolved", answer=answer))
        answers = " ".join(f"answer-{i}" for i in range(QUESTIONS))
        text = Frame("9", "text", b'{"type":"text","text":"%b"}' % answers.encode())
        return Tracked("asking", run_id=run, seen=[text], ended=True)

    def _talker(self) -> Tracked:
        run = "r_talks"
        self.store(run, *opening(run))
        heard = v.UserInput(payload=said("one").payload, inbox="i_1")
        self.store(run, heard)
        self.store(run, *ending())
        self.notes.sent[run] = {"one", "never taken"}
        self.notes.taken[run] = ["one"]
        return Tracked("talker", run_id=run, ended=True)

    def _hooked(self) -> Tracked:
        run = "r_hooked"
        self.store(run, *opening(run))
        self.store(run, called("c", "Memory"))
        call = sum(len(c.bodies) for c in self.log.journals["", run])
        self.store(run, v.CallPrepared(tool_use_id="c", input=Raw(b'{"key":"hooked-1"}')))
        self.log.memory["u"] = [written("hooked-1", f"{run}.{call}")]
        return Tracked("hooked", user_id="u", run_id=run, ended=True)


def written(key: str, effect: str) -> state.MemoryWritten:
    return state.MemoryWritten(
        scope="user",
        scope_id="u",
        key=key,
        op="incr",
        created_at_ns=1,
        updated_at_ns=1,
        effect_id=effect,
    )


def test_kept_promises_are_no_violation() -> None:
    assert Scene().verdicts() == []


def _child_started_twice(scene: Scene) -> None:
    ids = {"run": f"{ROOT}0", "session": "s", "agent": "a", "agent_id": "a"}
    scene.store(ROOT, v.ChildStarted(tool_use_id="t", index=0, **ids))


def _child_ended_twice(scene: Scene) -> None:
    scene.store(ROOT, v.ChildFinished(tool_use_id="t", index=0, run=f"{ROOT}0", ok=True))


def _two_children_of_one_entry(scene: Scene) -> None:
    twin, parent = "r_twin", v.ParentCall(ROOT, 5, 0)
    scene.store(twin, *opening(twin, parent=parent), finished())


def _child_is_gone(scene: Scene) -> None:
    del scene.log.journals["", f"{ROOT}01"]


def _end_of_a_child_is_missing(scene: Scene) -> None:
    scene.drop(f"{ROOT}0", v.ChildFinished)


def _failed_child_is_said_to_be_well(scene: Scene) -> None:
    scene.drop(f"{ROOT}01", v.RunFinished)
    scene.store(f"{ROOT}01", finished("failed"))


def _miscounted_leaves(scene: Scene) -> None:
    scene.runs[0].seen.append(Frame("10", "text", b'{"type":"text","text":"0"}'))


def _asked_twice(scene: Scene) -> None:
    asked = v.InterruptionBody(interrupt_id="0", kind="question", priority="normal")
    scene.store("r_talks", v.InterruptionPending(interruption=asked))


def _answered_twice(scene: Scene) -> None:
    closed = v.InterruptClosed(interrupt_id="0", status="resolved", answer="another")
    scene.store("r_asks", closed)


def _two_were_told_that_theirs_is_the_answer(scene: Scene) -> None:
    scene.notes.taken["0"].append("another")


def _another_answer_was_used(scene: Scene) -> None:
    scene.notes.taken["0"] = ["another"]


def _an_answer_of_nobody(scene: Scene) -> None:
    scene.notes.sent["0"], scene.notes.taken["0"] = {"another"}, []


def _the_answer_is_not_what_the_run_says(scene: Scene) -> None:
    scene.runs[1].seen.clear()


def _input_is_lost(scene: Scene) -> None:
    scene.notes.taken["r_talks"].append("never taken")


def _input_is_heard_twice(scene: Scene) -> None:
    scene.store("r_talks", v.UserInput(payload=said("one").payload, inbox="i_2"))


def _input_of_nobody(scene: Scene) -> None:
    scene.store("r_talks", v.UserInput(payload=said("who?").payload, inbox="i_2"))


def _hook_was_asked_again(scene: Scene) -> None:
    again = v.CallPrepared(tool_use_id="c", input=Raw(b'{"key":"hooked-2"}'))
    scene.store("r_hooked", again)


def _another_verdict_was_used(scene: Scene) -> None:
    scene.log.memory["u"] = [written("hooked-2", scene.log.memory["u"][0].effect_id)]


def _effect_performed_twice(scene: Scene) -> None:
    scene.log.memory["u"] *= 2


@pytest.mark.parametrize(
    "damage",
    [
        _child_started_twice,
        _child_ended_twice,
        _two_children_of_one_entry,
        _child_is_gone,
        _end_of_a_child_is_missing,
        _failed_child_is_said_to_be_well,
        _miscounted_leaves,
        _asked_twice,
        _answered_twice,
        _two_were_told_that_theirs_is_the_answer,
        _another_answer_was_used,
        _an_answer_of_nobody,
        _the_answer_is_not_what_the_run_says,
        _input_is_lost,
        _input_is_heard_twice,
        _input_of_nobody,
        _hook_was_asked_again,
        _another_verdict_was_used,
        _effect_performed_twice,
    ],
    ids=lambda damage: damage.__name__.strip("_"),
)
def test_each_broken_promise_is_found(damage: Callable[[Scene], None]) -> None:
    scene = Scene()
    damage(scene)
    assert scene.verdicts() != []
