"""What the availability matrix holds usable, after probes and after the calls of runs."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator

from events.plan import Pair
from loomcycle.providers.base import Capabilities, Delta, Done, ProviderError
from loomcycle.routing.matrix import Matrix, ModelStatus
from loomcycle.routing.probes import Prober
from replay.conversation import ModelRequest

GOOD = Pair("openai", "m-1")
OTHER = Pair("openai", "m-2")


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


class Vendor:
    """A provider whose list of models is an answer, an error, or a long silence."""

    capabilities = Capabilities()

    def __init__(self, name: str, answer: list[str] | Exception | None) -> None:
        self.id, self.answer, self.asked = name, answer, 0
        self.asked_thrice = asyncio.Event()

    async def models(self) -> list[str]:
        self.asked += 1
        if self.asked == 3:
            self.asked_thrice.set()
        match self.answer:
            case None:
                await asyncio.Event().wait()
                raise AssertionError("unreachable")
            case Exception() as cause:
                raise cause
            case names:
                return names

    async def stream(self, request: ModelRequest) -> AsyncGenerator[Delta, None]:
        yield Done()

    async def close(self) -> None:
        """Nothing to close."""


def matrix(clock: Clock | None = None) -> Matrix:
    return Matrix(
        ["openai"],
        {"gemini": "GEMINI_API_KEY not set"},
        monotonic=clock or Clock(),
        now_ns=lambda: 7,
    )


def listed(clock: Clock | None = None) -> Matrix:
    known = matrix(clock)
    known.listed("openai", ["m-1", "m-2"])
    return known


def test_nothing_is_usable_before_a_probe() -> None:
    assert not matrix().usable(GOOD)
    assert not Matrix().usable(GOOD)


def test_only_listed_models_of_reachable_providers_are_usable() -> None:
    known = listed()
    assert known.usable(GOOD)
    assert not known.usable(Pair("openai", "m-3"))
    assert not known.usable(Pair("gemini", "m-1"))
    known.unreachable("openai", "http: refused")
    assert not known.usable(GOOD)


def test_a_failed_probe_keeps_the_list_and_says_why() -> None:
    known = listed()
    known.unreachable("openai", "http: refused")
    status = known.report()["openai"]
    assert (status.reachable, status.last_error, status.last_check_ns) == (
        False, "http: refused", 7,
    )  # fmt: skip
    assert status.models == dict.fromkeys(("m-1", "m-2"), ModelStatus(listed=True, stalled=False))


def test_an_excluded_provider_names_its_reason() -> None:
    status = matrix().report()["gemini"]
    assert (status.excluded, status.reachable, status.models) == (True, False, {})
    assert (status.last_check_ns, status.last_error) == (0, "GEMINI_API_KEY not set")


def test_a_stall_lasts_until_a_probe_succeeds() -> None:
    known = listed()
    known.stall(GOOD)
    assert not known.usable(GOOD)
    assert known.usable(OTHER)
    assert known.report()["openai"].models["m-1"].stalled
    known.unreachable("openai", "down")
    known.listed("openai", ["m-1"])
    assert known.usable(GOOD)
    assert not known.usable(OTHER)


def test_a_stall_lasts_until_a_turn_succeeds() -> None:
    known = listed()
    known.stall(GOOD)
    known.succeeded("openai", "m-2")
    assert not known.usable(GOOD)
    known.succeeded("openai", "m-1")
    assert known.usable(GOOD)


def test_a_cooldown_ends_by_itself_and_by_nothing_else() -> None:
    clock = Clock()
    known = listed(clock)
    known.cool_down(GOOD, 1_500)
    known.succeeded("openai", "m-1")
    known.listed("openai", ["m-1", "m-2"])
    clock.now = 1.4
    assert not known.usable(GOOD)
    assert known.usable(OTHER)
    clock.now = 1.5
    assert known.usable(GOOD)


def test_a_shorter_cooldown_does_not_end_a_longer_one() -> None:
    clock = Clock()
    known = listed(clock)
    known.cool_down(GOOD, 30_000)
    known.cool_down(GOOD, 1_000)
    clock.now = 29.0
    assert not known.usable(GOOD)


def test_a_stalled_model_that_is_not_listed_is_shown() -> None:
    known = listed()
    known.stall(Pair("openai", "gone"))
    models = known.report()["openai"].models
    assert models["gone"] == ModelStatus(listed=False, stalled=True)


async def test_who_chooses_waits_for_the_first_probe_only() -> None:
    known = matrix()
    waiting = asyncio.create_task(known.settled("openai"))
    await asyncio.sleep(0)
    assert not waiting.done()
    known.unreachable("openai", "down")
    await waiting
    await known.settled("openai")
    await known.settled("gemini")
    await known.settled("nobody")


async def test_a_probe_asks_all_and_fails_for_none() -> None:
    vendors = {
        "openai": Vendor("openai", ["m-1"]),
        "ollama": Vendor("ollama", ProviderError("http: refused")),
        "mock": Vendor("mock", RuntimeError("a defect")),
    }
    known = Matrix(vendors)
    await Prober(known, vendors, interval_s=900).probe()
    report = known.report()
    assert known.usable(GOOD)
    assert report["ollama"].last_error == "http: refused"
    assert report["mock"].last_error == "RuntimeError"


async def test_a_silent_provider_does_not_hold_up_the_others() -> None:
    vendors = {"openai": Vendor("openai", ["m-1"]), "gemini": Vendor("gemini", None)}
    known = Matrix(vendors)
    prober = Prober(known, vendors, interval_s=900)
    prober.start()
    try:
        await known.settled("openai")
        assert known.usable(GOOD)
        assert known.report()["gemini"].last_check_ns == 0
    finally:
        await prober.stop()


async def test_probes_repeat() -> None:
    vendor = Vendor("openai", ["m-1"])
    known = Matrix({"openai": vendor})
    prober = Prober(known, {"openai": vendor}, interval_s=0)
    prober.start()
    try:
        async with asyncio.timeout(5):
            await vendor.asked_thrice.wait()
    finally:
        await prober.stop()
