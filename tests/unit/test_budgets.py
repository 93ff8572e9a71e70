"""Budgets of trees of runs: exact under concurrency, lost answers and dead workers."""

from __future__ import annotations

import asyncio
import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from events.budget import Amount, BudgetEvent, BudgetReserved, BudgetSettled, decode, encode
from events.commit import encode_commit, new_event
from events.log import EventStore
from events.memory_faults import Fault
from events.memory_store import MemoryServer
from events.plan import Budget, RunPlan
from events.vocabulary import Event, RunFinished, Text, Usage, UsageTotals
from loomcycle.budget.budgets import Budgets, Refusal
from loomcycle.budget.ledger import Ledger, refusal
from loomcycle.budget.prices import ASSUMED_OUTPUT_TOKENS, Prices, Unpriced, request_bytes
from loomcycle.config.schema import PriceConfig
from loomcycle.loading import Plans
from replay.conversation import Message, ModelRequest
from replay.conversation import Text as Said
from replay.request import model_request
from replay.state import Phase, State
from tests.stories import PLAN, answers, claims, goes_on, opens, told
from tests.virtual_time import play

ROOT = "r_ab00000000000001"
REQUEST = ModelRequest(
    provider="mock", model="m-1", messages=[Message("user", (Said("x" * 30),))], max_tokens=90
)
"""Ten tokens in, ninety out at most."""

TABLE = {"mock/m-1": PriceConfig(input_per_mtok=1.0, output_per_mtok=2.0)}


def uses(tokens_in: int, tokens_out: int) -> Usage:
    return Usage(usage=UsageTotals(input_tokens=tokens_in, output_tokens=tokens_out))


def plan(**limits: int) -> RunPlan:
    return replace(PLAN, model="m-1", budget=Budget(**limits) if limits else None)


def running(
    run: str = ROOT, *, root: str = "", given: RunPlan | None = None, epoch: int = 1
) -> State:
    state = told(*opens(run=run, root=root), plan=given or plan())
    state.epoch = epoch
    return state


def spends(state: State, tokens_in: int, tokens_out: int) -> State:
    return goes_on(state, Text(text="ok"), uses(tokens_in, tokens_out), answers("tool_use"))


# --- prices -------------------------------------------------------------------------------


def test_exact_names_win_over_patterns_and_longer_patterns_over_shorter_ones() -> None:
    prices = Prices(
        {
            "*": PriceConfig(input_per_mtok=1),
            "gpt-*": PriceConfig(input_per_mtok=2),
            "gpt-5": PriceConfig(input_per_mtok=3),
            "openai/gpt-5": PriceConfig(input_per_mtok=4),
        }
    )
    found = [prices.of(*pair) for pair in (("openai", "gpt-5"), ("x", "gpt-5"), ("x", "gpt-4"))]
    found.append(prices.of("x", "y"))
    assert [rates.fresh for rates in found if rates] == [4_000_000, 3_000_000, 2_000_000, 1_000_000]


def test_money_is_counted_in_whole_millionths_rounded_up() -> None:
    prices = Prices({"m-1": PriceConfig(input_per_mtok=0.1, cache_read_per_mtok=0.01)})
    usage = UsageTotals(input_tokens=11, output_tokens=5, cache_read_input_tokens=1)
    assert prices.spent({("mock", "m-1"): usage}, money=True) == Amount(2, 17)


def test_a_model_without_price_is_named() -> None:
    with pytest.raises(Unpriced, match="mock/m-2 has no price: add"):
        Prices(TABLE).bound(replace(REQUEST, model="m-2"), money=True)


def test_a_bound_covers_the_dearest_input_and_the_longest_answer() -> None:
    assert Prices(TABLE).bound(REQUEST, money=True) == Amount(10 + 2 * 90, 100)
    unset = Prices(TABLE).bound(replace(REQUEST, max_tokens=0), money=False)
    assert unset.tokens == 10 + ASSUMED_OUTPUT_TOKENS


def test_everything_that_is_sent_counts() -> None:
    state = running()
    bare = request_bytes(ModelRequest(provider="mock", model="m", messages=state.messages))
    assert request_bytes(model_request(state)) > bare > 0


# --- the ledger ---------------------------------------------------------------------------


def reserved(run: str, spent: int, amount: int, epoch: int = 1) -> BudgetReserved:
    return BudgetReserved(
        run=run, key=f"{run}.0.1", epoch=epoch, spent=Amount(0, spent), amount=Amount(0, amount)
    )


def settled(run: str, spent: int, epoch: int = 1) -> BudgetSettled:
    return BudgetSettled(run=run, epoch=epoch, spent=Amount(0, spent))


def ledger(*events: BudgetEvent) -> Ledger:
    made = Ledger()
    for seq, event in enumerate(events, 1):
        made.apply(seq, decode(encode(event)))
    return made


def fits(made: Ledger, run: str, wanted: int, spent: int = 0, limit: int = 100) -> bool:
    return not refusal(Budget(tokens=limit), made, run, Amount(0, spent), Amount(0, wanted))


def test_a_call_fits_until_the_limit_is_reached_exactly() -> None:
    made = ledger(reserved("a", 0, 60))
    assert fits(made, "b", 40)
    assert not fits(made, "b", 41)


def test_a_reservation_of_the_same_run_is_replaced_not_added() -> None:
    made = ledger(reserved("a", 0, 60), reserved("a", 10, 50, epoch=3))
    assert fits(made, "b", 40)
    assert not fits(made, "b", 41)
    assert fits(made, "a", 90, spent=10)


def test_what_is_settled_is_free_again() -> None:
    made = ledger(reserved("a", 0, 60), settled("a", 25))
    assert fits(made, "b", 75)
    assert made.spent == Amount(0, 25)


def test_an_owner_that_lost_its_run_changes_nothing() -> None:
    made = ledger(reserved("a", 30, 60, epoch=5), settled("a", 0, epoch=2))
    assert not fits(made, "b", 11)


def test_a_refusal_tells_what_was_spent_and_what_is_under_way() -> None:
    made = ledger(settled("a", 50), reserved("b", 0, 20))
    said = refusal(Budget(tokens=100), made, "c", Amount(0, 5), Amount(0, 30))
    assert said.startswith(
        "budget exceeded: max_tokens_total is 100; spent are 55, calls under way may take 20,"
        " this one 30"
    )
    money = refusal(Budget(cost_micros=1_500_000), Ledger(), "c", Amount(), Amount(2_000_000))
    assert "max_cost_usd is 1.5; spent are 0," in money


# --- on a log -----------------------------------------------------------------------------


def budgets_of(store: EventStore, table: dict[str, PriceConfig] | None = None) -> Budgets:
    return Budgets(store, Plans(store), Prices(TABLE if table is None else table))


async def journal(store: EventStore, given: RunPlan, run: str, *events: Event) -> None:
    """The first commit of ``run``, under a stored plan."""
    name = await Plans(store).put(given)
    opening = [*opens(run=run, plan=name), *events]
    events_ = [new_event(event) for event in opening]
    data, _, _, _ = encode_commit(
        run=run, c=1, prev="", epoch=1, writer="w", first_n=1, ts=1, events=events_
    )
    await store.log.append(store.subjects.journal("", run), data, after=0)


def test_a_run_without_budget_writes_and_reads_nothing() -> None:
    async def story() -> None:
        operations: list[str] = []

        async def noted(client: str, operation: str) -> Fault | None:
            operations.append(operation)
            return None

        budgets = budgets_of(MemoryServer(noted).connect("p"))
        state = running()
        assert not budgets.concerns(state)
        assert await budgets.reserve(state, REQUEST) is None
        await budgets.settle(state)
        await budgets.ended(state)
        assert operations == []

    play(story)


def test_calls_are_refused_once_the_budget_is_spent() -> None:
    async def story() -> None:
        budgets = budgets_of(MemoryServer().connect("p"))
        state = running(given=plan(tokens=250))
        for _ in range(2):
            assert await budgets.reserve(state, REQUEST) is None
            spends(state, 10, 80)
            await budgets.settle(state)
            state = running_on(state)
        refused = await budgets.reserve(state, REQUEST)
        assert isinstance(refused, Refusal)
        assert "spent are 180" in refused.reason
        assert await budgets.spent(state) == Amount(0, 180)

    play(story)


def running_on(state: State) -> State:
    """The next turn of ``state``."""
    state.phase = Phase.MODEL
    return state


def test_children_spend_from_the_budget_of_the_run_at_the_top() -> None:
    async def story() -> None:
        server = MemoryServer()
        store = server.connect("p")
        await journal(store, plan(cost_micros=400), ROOT)
        first = running("r_c1", root=ROOT)
        second = running("r_c2", root=ROOT)
        here, there = budgets_of(store), budgets_of(server.connect("q"))
        assert await here.reserve(first, REQUEST) is None
        assert await there.reserve(second, REQUEST) is None
        third = running("r_c3", root=ROOT)
        assert isinstance(await here.reserve(third, REQUEST), Refusal)
        spends(first, 10, 5)
        await here.settle(first)
        assert isinstance(await there.reserve(third, replace(REQUEST, max_tokens=100)), Refusal)
        assert await there.reserve(third, REQUEST) is None

    play(story)


def test_a_child_of_a_run_without_budget_writes_nothing() -> None:
    async def story() -> None:
        store = MemoryServer().connect("p")
        await journal(store, plan(), ROOT)
        budgets = budgets_of(store)
        child = running("r_c1", root=ROOT)
        assert await budgets.reserve(child, REQUEST) is None
        await budgets.settle(child)
        assert await store.log.last(store.subjects.state("budget", "", ROOT)) is None

    play(story)


def test_a_child_s_own_budget_bounds_its_own_calls() -> None:
    async def story() -> None:
        store = MemoryServer().connect("p")
        await journal(store, plan(), ROOT)
        child = running("r_c1", root=ROOT, given=plan(tokens=99))
        assert isinstance(await budgets_of(store).reserve(child, REQUEST), Refusal)

    play(story)


def test_an_unpriced_model_is_refused_before_anything_is_asked() -> None:
    async def story() -> None:
        budgets = budgets_of(MemoryServer().connect("p"), {})
        refused = await budgets.reserve(running(given=plan(cost_micros=10**9)), REQUEST)
        assert isinstance(refused, Refusal)
        assert "has no price" in refused.reason

    play(story)


def test_a_dead_worker_s_reservation_is_replaced_when_the_call_is_repeated() -> None:
    async def story() -> None:
        server = MemoryServer()
        died = running(given=plan(tokens=100))
        assert await budgets_of(server.connect("p")).reserve(died, REQUEST) is None
        taken_over = goes_on(running(given=plan(tokens=100), epoch=2), claims())
        assert await budgets_of(server.connect("q")).reserve(taken_over, REQUEST) is None
        spends(died, 10, 90)
        zombie = budgets_of(server.connect("p"))
        await zombie.settle(died)
        assert await zombie.spent(taken_over) == Amount(0, 0)

    play(story)


def test_what_a_run_reserved_that_ended_unsettled_is_released_before_others_are_refused() -> None:
    async def story() -> None:
        server = MemoryServer()
        store = server.connect("p")
        given = plan(tokens=110)
        finished = RunFinished(status="cancelled")
        await journal(store, given, ROOT)
        await journal(
            store, plan(), "r_c1", Text(text="x"), uses(5, 5), answers("tool_use"), finished
        )
        dead = running("r_c1", root=ROOT)
        assert await budgets_of(store).reserve(dead, REQUEST) is None
        other = running("r_c2", root=ROOT)
        budgets = budgets_of(server.connect("q"))
        assert await budgets.reserve(other, REQUEST) is None
        assert await budgets.spent(other) == Amount(0, 10)

    play(story)


def test_the_end_of_a_run_settles_what_another_process_reserved_for_it() -> None:
    async def story() -> None:
        server = MemoryServer()
        state = running(given=plan(tokens=1000))
        assert await budgets_of(server.connect("p")).reserve(state, REQUEST) is None
        ended = running(given=plan(tokens=1000), epoch=4)
        budgets = budgets_of(server.connect("q"))
        await budgets.ended(ended)
        store = server.connect("r")
        last = await store.log.last(store.subjects.state("budget", "", ROOT))
        assert last is not None
        assert isinstance(decode(last.data), BudgetSettled)

    play(story)


@settings(max_examples=60, deadline=None)
@given(seed=st.integers(0, 2**32), limit=st.integers(0, 2500))
def test_concurrent_calls_of_three_processes_never_overrun(seed: int, limit: int) -> None:
    """Answers get lost, workers die in calls; what was spent is the sum of all usage."""

    async def story() -> None:
        chance = random.Random(seed)

        async def lossy(client: str, operation: str) -> Fault | None:
            if client != "setup" and operation == "log.append" and chance.random() < 0.2:
                return chance.choice(list(Fault))
            return None

        server = MemoryServer(lossy)
        await journal(server.connect("setup"), plan(tokens=limit), ROOT)
        processes = [budgets_of(server.connect(name)) for name in "abc"]
        spent = 0

        async def child(number: int) -> None:
            nonlocal spent
            state = running(f"r_c{number}", root=ROOT)
            for _ in range(2):
                budgets = chance.choice(processes)
                if isinstance(await budgets.reserve(state, REQUEST), Refusal):
                    break
                await asyncio.sleep(chance.random())
                if chance.random() < 0.2:  # its worker dies; another takes over
                    state.epoch += 1
                    if isinstance(await chance.choice(processes).reserve(state, REQUEST), Refusal):
                        break
                taken = chance.randint(1, 90)
                spends(state, 10, taken)
                spent += 10 + taken
                await budgets.settle(state)
                running_on(state)
                assert (await chance.choice(processes).spent(state)).tokens <= limit
            await chance.choice(processes).ended(state)

        await asyncio.gather(*(child(number) for number in range(12)))
        for budgets in processes:
            assert (await budgets.spent(running("r_x", root=ROOT))).tokens == spent
        assert spent <= limit

    play(story)
