"""Budgets of trees of runs: exact under concurrency, lost answers and dead workers."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Iterable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec import Struct
from msgspec.structs import replace

from events.budget import Amount, BudgetEvent, BudgetReserved, BudgetSettled, decode, encode
from events.commit import encode_commit, new_event
from events.log import EventStore
from events.memory_faults import Fault
from events.memory_store import MemoryServer
from events.plan import Budget, RunPlan
from events.vocabulary import Event, ParentCall, RunFinished, Text, Usage, UsageTotals
from loomcycle.budget.budgets import SHORTEST_ANSWER, Budgets, Refusal
from loomcycle.budget.ledger import Ledger, Limit, refusal
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
    provider="mock", model="m-1", messages=[Message("user", (Said("x" * 4),))], max_tokens=90
)
"""Ten tokens in, ninety out at most."""

TABLE = {"mock/m-1": PriceConfig(input_per_mtok=1.0, output_per_mtok=2.0)}


def uses(tokens_in: int, tokens_out: int) -> Usage:
    return Usage(usage=UsageTotals(input_tokens=tokens_in, output_tokens=tokens_out))


def plan(**limits: int) -> RunPlan:
    return replace(PLAN, model="m-1", budget=Budget(**limits) if limits else None)


def running(
    run: str = ROOT,
    *,
    root: str = "",
    parent: str = "",
    given: RunPlan | None = None,
    epoch: int = 1,
) -> State:
    """A child of ``root`` when no ``parent`` is given."""
    above = parent or root
    call = ParentCall(above, 4) if above else None
    state = told(*opens(run=run, root=root, parent=call), plan=given or plan())
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
        Prices(TABLE).quote(replace(REQUEST, model="m-2"), money=True)


def test_a_bound_covers_the_dearest_input_and_the_answer() -> None:
    quote = Prices(TABLE).quote(REQUEST, money=True)
    assert quote.at_most(90) == Amount(10 + 2 * 90, 100)
    assert Prices(TABLE).quote(REQUEST, money=False).at_most(90) == Amount(0, 100)


def test_input_that_was_counted_before_is_not_guessed_again() -> None:
    prices = Prices(TABLE)
    assert prices.quote(REQUEST, money=False, counted=25).given == 25
    assert prices.quote(REQUEST, money=False, counted=5).given == 10


@given(
    tokens=st.none() | st.integers(-50, 500),
    cost_micros=st.none() | st.integers(-50, 500),
    price=st.sampled_from([0.0, 0.3, 1.0, 7.5]),
    long=st.integers(0, 400),
)
def test_the_longest_answer_is_what_the_budget_pays_for_and_not_one_token_more(
    tokens: int | None, cost_micros: int | None, price: float, long: int
) -> None:
    table = {"m-1": PriceConfig(input_per_mtok=1.1, output_per_mtok=price)}
    quote = Prices(table).quote(REQUEST, money=True)
    left = Budget(tokens=tokens, cost_micros=cost_micros)
    longest = quote.longest_answer(left)
    if long >= 0 and (cost_micros is None or price or cost_micros >= 11):
        assert within(left, quote.at_most(long)) == (longest is None or long <= longest)


def test_everything_that_is_sent_counts() -> None:
    state = running()
    bare = request_bytes(ModelRequest(provider="mock", model="m", messages=state.messages))
    assert request_bytes(model_request(state)) > bare > 0


# --- the ledger ---------------------------------------------------------------------------


def reserved(
    run: str, spent: int, amount: int, epoch: int = 1, within: tuple[str, ...] = ()
) -> BudgetReserved:
    return BudgetReserved(
        run=run,
        key=f"{run}.0.1",
        epoch=epoch,
        spent=Amount(0, spent),
        amount=Amount(0, amount),
        within=within,
    )


def settled(run: str, spent: int, epoch: int = 1, within: tuple[str, ...] = ()) -> BudgetSettled:
    return BudgetSettled(run=run, epoch=epoch, spent=Amount(0, spent), within=within)


def ledger(*events: BudgetEvent) -> Ledger:
    made = Ledger("top")
    for seq, event in enumerate(events, 1):
        made.apply(seq, decode(encode(event)))
    return made


def fits(made: Ledger, run: str, wanted: int, spent: int = 0, **limits: int) -> bool:
    """``limits``: tokens by run; 100 for the run at the top when there are none."""
    over = [Limit(name, Budget(tokens=most)) for name, most in (limits or {"top": 100}).items()]
    return not refusal(over, made, run, Amount(0, spent), Amount(0, wanted))


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


def test_a_call_must_fit_every_budget_above_it() -> None:
    made = ledger(reserved("m", 10, 20, within=("m",)), settled("x", 40))
    assert fits(made, "c", 30, top=100, m=60)
    assert not fits(made, "c", 31, top=100, m=60)
    assert not fits(made, "c", 31, top=100, m=200)
    assert fits(made, "y", 30, top=100)


def test_only_what_a_run_and_those_below_it_use_counts_for_its_budget() -> None:
    made = ledger(
        settled("x", 70),
        reserved("m", 5, 10, within=("m",)),
        settled("c", 20, within=("m", "c")),
    )
    assert (made.spent.tokens, made.spent_by("m").tokens, made.spent_by("c").tokens) == (95, 25, 20)
    assert fits(made, "m", 30, spent=5, m=55)
    assert not fits(made, "m", 31, spent=5, m=55)


def test_what_is_replaced_is_taken_from_every_budget() -> None:
    made = ledger(
        reserved("c", 0, 60, within=("m",)),
        settled("c", 10, epoch=2, within=("m",)),
        reserved("c", 0, 60, epoch=1, within=("m",)),
    )
    assert (made.spent, made.spent_by("m")) == (Amount(0, 10), Amount(0, 10))
    assert fits(made, "d", 40, top=50, m=50)
    assert not fits(made, "d", 41, top=50, m=60)
    assert not fits(made, "d", 41, top=60, m=50)


def test_a_refusal_tells_what_was_spent_and_what_is_under_way() -> None:
    made = ledger(settled("a", 50), reserved("b", 0, 20))
    limit = Limit("top", Budget(tokens=100))
    said = refusal([limit], made, "top", Amount(0, 5), Amount(0, 30))
    assert said.startswith(
        "budget exceeded: max_tokens_total is 100; spent are 55, calls under way may take 20,"
        " this one 30"
    )
    in_money = Limit("c", Budget(cost_micros=1_500_000))
    money = refusal([in_money], Ledger("c"), "c", Amount(), Amount(2_000_000))
    assert "max_cost_usd is 1.5; spent are 0," in money


def test_a_refusal_names_the_run_whose_budget_it_is_and_of_several_the_nearest() -> None:
    limits = [Limit("top", Budget(tokens=100)), Limit("m", Budget(tokens=100))]
    made = ledger(settled("c", 90, within=("m",)))
    assert "max_tokens_total of run m is 100;" in refusal(
        limits, made, "d", Amount(), Amount(0, 11)
    )
    assert "max_tokens_total is 100;" in refusal(limits, made, "m", Amount(), Amount(0, 11))
    made = ledger(settled("x", 90))
    assert "of run top is 100;" in refusal(limits, made, "m", Amount(), Amount(0, 11))


# --- on a log -----------------------------------------------------------------------------


def budgets_of(store: EventStore, table: dict[str, PriceConfig] | None = None) -> Budgets:
    return Budgets(store, Plans(store), Prices(TABLE if table is None else table))


async def journal(
    store: EventStore, given: RunPlan, run: str, *events: Event, root: str = "", parent: str = ""
) -> None:
    """The first commit of ``run``, under a stored plan."""
    name = await Plans(store).put(given)
    above = ParentCall(parent or root, 4) if root else None
    opening = [*opens(run=run, plan=name, root=root, parent=above), *events]
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
        assert await budgets.reserve(state, REQUEST) == 0
        await budgets.settle(state)
        await budgets.ended(state)
        assert operations == []

    play(story)


def test_calls_are_refused_once_the_budget_is_spent() -> None:
    async def story() -> None:
        budgets = budgets_of(MemoryServer().connect("p"))
        state = running(given=plan(tokens=250))
        for _ in range(2):
            assert await budgets.reserve(state, REQUEST) == 90
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
        assert await here.reserve(first, REQUEST) == 90
        assert await there.reserve(second, REQUEST) == 90
        third = running("r_c3", root=ROOT)
        assert isinstance(await here.reserve(third, REQUEST), Refusal)
        spends(first, 10, 5)
        await here.settle(first)
        assert isinstance(await there.reserve(third, replace(REQUEST, max_tokens=100)), Refusal)
        assert await there.reserve(third, REQUEST) == 90

    play(story)


def test_a_child_of_a_run_without_budget_writes_nothing() -> None:
    async def story() -> None:
        store = MemoryServer().connect("p")
        await journal(store, plan(), ROOT)
        budgets = budgets_of(store)
        child = running("r_c1", root=ROOT)
        assert await budgets.reserve(child, REQUEST) == 0
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


MIDDLE = "r_ab00000000000002"


@pytest.mark.parametrize("at_the_top", [{}, {"tokens": 10**6}, {"cost_micros": 10**6}])
def test_the_budget_of_a_child_bounds_all_runs_below_it_together(
    at_the_top: dict[str, int],
) -> None:
    async def story() -> None:
        server = MemoryServer()
        store = server.connect("p")
        given = plan(tokens=250)
        await journal(store, plan(**at_the_top), ROOT)
        await journal(store, given, MIDDLE, root=ROOT)
        await journal(store, plan(), "r_c1", root=ROOT, parent=MIDDLE)
        here, there = budgets_of(store), budgets_of(server.connect("q"))
        middle = running(MIDDLE, root=ROOT, given=given)
        child = running("r_c1", root=ROOT, parent=MIDDLE)
        grandchild = running("r_c2", root=ROOT, parent="r_c1")
        beside = running("r_c3", root=ROOT)
        assert await here.reserve(child, REQUEST) == 90
        assert await there.reserve(grandchild, REQUEST) == 90
        refused = await here.reserve(middle, REQUEST)
        assert isinstance(refused, Refusal)
        assert (
            "max_tokens_total is 250; spent are 0, calls under way may take 200" in refused.reason
        )
        assert await there.reserve(beside, REQUEST) == (90 if at_the_top else 0)
        spends(child, 10, 30)
        await here.settle(child)
        assert await there.reserve(middle, REQUEST) == 90

    play(story)


def test_children_with_budgets_under_a_run_without_have_a_ledger_each() -> None:
    async def story() -> None:
        store = MemoryServer().connect("p")
        await journal(store, plan(), ROOT)
        budgets = budgets_of(store)
        for run in ("r_c1", "r_c2"):
            child = running(run, root=ROOT, given=plan(tokens=100))
            assert await budgets.reserve(child, REQUEST) == 90
            assert await store.log.last(store.subjects.state("budget", "", run)) is not None
        assert await store.log.last(store.subjects.state("budget", "", ROOT)) is None

    play(story)


def test_a_tree_without_budgets_is_read_once() -> None:
    async def story() -> None:
        operations: list[str] = []

        async def noted(client: str, operation: str) -> Fault | None:
            if client == "p":
                operations.append(operation)
            return None

        server = MemoryServer(noted)
        setup = server.connect("setup")
        await journal(setup, plan(), ROOT)
        await journal(setup, plan(), MIDDLE, root=ROOT)
        budgets = budgets_of(server.connect("p"))
        for number in range(5):
            child = running(f"r_c{number}", root=ROOT, parent=MIDDLE)
            assert await budgets.reserve(child, REQUEST) == 0
            await budgets.settle(child)
            await budgets.ended(child)
        plans = ["log.read"]
        assert [o for o in operations if ":" not in o] == ["log.first", *plans, "log.first"]

    play(story)


def test_a_dead_child_is_released_from_the_budget_in_the_middle() -> None:
    async def story() -> None:
        server = MemoryServer()
        store = server.connect("p")
        given = plan(tokens=110)
        await journal(store, plan(cost_micros=10**6), ROOT)
        await journal(store, given, MIDDLE, root=ROOT)
        said = (Text(text="x"), uses(5, 5), answers("tool_use"), RunFinished(status="cancelled"))
        await journal(store, plan(), "r_c1", *said, root=ROOT, parent=MIDDLE)
        dead = running("r_c1", root=ROOT, parent=MIDDLE)
        assert await budgets_of(store).reserve(dead, REQUEST) == 90
        middle = running(MIDDLE, root=ROOT, given=given)
        budgets = budgets_of(server.connect("q"))
        assert await budgets.reserve(middle, REQUEST) == 90
        assert await budgets.spent(middle) == Amount(15, 10)

    play(story)


LONG = replace(REQUEST, max_tokens=0)
"""Ten tokens in, and an agent that does not say how many out."""


def test_a_call_that_does_not_say_how_long_its_answer_may_be_is_told() -> None:
    async def story() -> None:
        budgets = budgets_of(MemoryServer().connect("p"))
        state = running(given=plan(tokens=10**6))
        assert await budgets.reserve(state, LONG) == ASSUMED_OUTPUT_TOKENS
        assert await budgets.reserve(state, replace(REQUEST, max_tokens=20_000)) == 20_000

    play(story)


@pytest.mark.parametrize(
    ("limits", "longest"),
    [({"tokens": 1000}, 990), ({"cost_micros": 1010}, 500), ({"tokens": 300}, 290)],
)
def test_an_answer_may_be_as_long_as_the_budget_still_pays_for(
    limits: dict[str, int], longest: int
) -> None:
    async def story() -> None:
        budgets = budgets_of(MemoryServer().connect("p"))
        state = running(given=plan(**limits))
        assert await budgets.reserve(state, LONG) == longest
        spends(state, 10, longest)
        await budgets.settle(state)
        assert isinstance(await budgets.reserve(running_on(state), LONG), Refusal)

    play(story)


def test_a_call_is_refused_when_only_a_word_of_its_answer_would_fit() -> None:
    async def story() -> None:
        budgets = budgets_of(MemoryServer().connect("p"))
        shortest = 10 + SHORTEST_ANSWER
        assert await budgets.reserve(running(given=plan(tokens=shortest)), LONG) == SHORTEST_ANSWER
        other = running("r_ab00000000000009", given=plan(tokens=shortest - 1))
        assert isinstance(await budgets.reserve(other, LONG), Refusal)

    play(story)


def test_children_at_once_share_what_is_left_and_a_dead_one_gives_back_first() -> None:
    async def story() -> None:
        server = MemoryServer()
        store = server.connect("p")
        await journal(store, plan(tokens=20_000), ROOT)
        said = (Text(text="x"), uses(5, 5), answers("tool_use"), RunFinished(status="cancelled"))
        await journal(store, plan(), "r_c1", *said, root=ROOT)
        children = [running(f"r_c{number}", root=ROOT) for number in range(1, 5)]
        dead, second, third, fourth = children
        for state in (dead, second):
            assert await budgets_of(store).reserve(state, LONG) == ASSUMED_OUTPUT_TOKENS
        budgets = budgets_of(server.connect("q"))
        assert await budgets.reserve(third, LONG) == ASSUMED_OUTPUT_TOKENS
        assert await budgets.reserve(fourth, LONG) == 20_000 - 10 - 2 * (8192 + 10) - 10

    play(story)


def test_a_run_that_an_unruly_vendor_took_over_its_limit_makes_no_more_calls() -> None:
    async def story() -> None:
        budgets = budgets_of(MemoryServer().connect("p"))
        state = running(given=plan(tokens=1000))
        assert await budgets.reserve(state, LONG) == 990
        spends(state, 10, 30_000)
        await budgets.settle(state)
        refused = await budgets.reserve(running_on(state), LONG)
        assert isinstance(refused, Refusal)
        assert "max_tokens_total is 1000; spent are 30010" in refused.reason

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
        assert await budgets_of(server.connect("p")).reserve(died, REQUEST) == 90
        taken_over = goes_on(running(given=plan(tokens=100), epoch=2), claims())
        assert await budgets_of(server.connect("q")).reserve(taken_over, REQUEST) == 90
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
        said = (Text(text="x"), uses(5, 5), answers("tool_use"))
        await journal(store, plan(), "r_c1", *said, finished, root=ROOT)
        dead = running("r_c1", root=ROOT)
        assert await budgets_of(store).reserve(dead, REQUEST) == 90
        other = running("r_c2", root=ROOT)
        budgets = budgets_of(server.connect("q"))
        assert await budgets.reserve(other, REQUEST) == 90
        assert await budgets.spent(other) == Amount(0, 10)

    play(story)


def test_the_end_of_a_run_settles_what_another_process_reserved_for_it() -> None:
    async def story() -> None:
        server = MemoryServer()
        state = running(given=plan(tokens=1000))
        assert await budgets_of(server.connect("p")).reserve(state, REQUEST) == 90
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


# --- trees with budgets anywhere ----------------------------------------------------------


class Tree(Struct, frozen=True):
    """Run number ``i`` has parent ``parents[i]``, a smaller number, and ``limits[i]``."""

    parents: tuple[int, ...]
    limits: tuple[Budget | None, ...]

    def name(self, run: int) -> str:
        return ROOT if run == 0 else f"r_c{run}"

    def path(self, run: int) -> list[int]:
        """``run`` and all above it."""
        return [run] if run == 0 else [run, *self.path(self.parents[run])]

    def above(self, run: int) -> tuple[str, str]:
        """The run at the top, and the parent."""
        return ("", "") if run == 0 else (ROOT, self.name(self.parents[run]))

    def below(self, run: int) -> list[int]:
        """``run`` and all below it."""
        return [r for r in range(len(self.parents)) if run in self.path(r)]

    def plan(self, run: int) -> RunPlan:
        return replace(plan(), budget=self.limits[run])

    def state(self, run: int) -> State:
        root, parent = self.above(run)
        return running(self.name(run), given=self.plan(run), root=root, parent=parent)

    async def begin(self, store: EventStore) -> None:
        for run in range(len(self.parents)):
            root, parent = self.above(run)
            await journal(store, self.plan(run), self.name(run), root=root, parent=parent)


LIMITS = st.none() | st.builds(
    Budget,
    tokens=st.none() | st.integers(0, 1500),
    cost_micros=st.none() | st.integers(0, 2500),
)


@st.composite
def trees(draw: st.DrawFn) -> Tree:
    size = draw(st.integers(1, 10))
    parents = (0, *(draw(st.integers(0, run - 1)) for run in range(1, size)))
    return Tree(parents, tuple(draw(LIMITS) for _ in range(size)))


def used(states: Iterable[State]) -> Amount:
    """What a table of prices of its own makes of it: input 1, output 2."""
    totals = [usage for state in states for usage in state.spend.values()]
    taken, made = sum(u.input_tokens for u in totals), sum(u.output_tokens for u in totals)
    return Amount(taken + 2 * made, taken + made)


def within(limit: Budget | None, amount: Amount) -> bool:
    if limit is None:
        return True
    cost, tokens = limit.cost_micros, limit.tokens
    return (cost is None or amount.cost_micros <= cost) and (
        tokens is None or amount.tokens <= tokens
    )


@settings(max_examples=60, deadline=None)
@given(tree=trees(), data=st.data())
def test_one_after_the_other_exactly_what_fits_every_budget_above_is_made(
    tree: Tree, data: st.DataObject
) -> None:
    async def story() -> None:
        server = MemoryServer()
        await tree.begin(server.connect("setup"))
        processes = [budgets_of(server.connect(name)) for name in "ab"]
        states = [tree.state(run) for run in range(len(tree.parents))]
        for run in data.draw(st.lists(st.integers(0, len(states) - 1), max_size=25)):
            budgets, state = data.draw(st.sampled_from(processes)), states[run]
            fitting = all(
                within(
                    tree.limits[above],
                    used(states[r] for r in tree.below(above)).plus(Amount(190, 100)),
                )
                for above in tree.path(run)
            )
            assert (not isinstance(await budgets.reserve(state, REQUEST), Refusal)) == fitting
            if fitting:
                spends(state, 10, data.draw(st.integers(1, 90)))
                await budgets.settle(state)
                running_on(state)

    play(story)


@settings(max_examples=60, deadline=None)
@given(tree=trees(), seed=st.integers(0, 2**32))
def test_no_budget_in_a_tree_is_overrun_by_the_runs_below_it(tree: Tree, seed: int) -> None:
    """Three processes at once; answers get lost, workers die in calls, ledgers tell the truth."""

    async def story() -> None:
        chance = random.Random(seed)

        async def lossy(client: str, operation: str) -> Fault | None:
            if client != "setup" and operation == "log.append" and chance.random() < 0.2:
                return chance.choice(list(Fault))
            return None

        server = MemoryServer(lossy)
        store = server.connect("setup")
        await tree.begin(store)
        processes = [budgets_of(server.connect(name)) for name in "abc"]
        states = [tree.state(run) for run in range(len(tree.parents))]

        async def work(state: State) -> None:
            for _ in range(3):
                budgets, request = chance.choice(processes), chance.choice([REQUEST, LONG])
                longest = await budgets.reserve(state, request)
                if isinstance(longest, Refusal):
                    break
                await asyncio.sleep(chance.random())
                if chance.random() < 0.2:  # its worker dies; another takes over
                    state.epoch += 1
                    budgets = chance.choice(processes)
                    longest = await budgets.reserve(state, request)
                    if isinstance(longest, Refusal):
                        break
                spends(state, 10, chance.randint(1, longest or 90))
                await budgets.settle(state)
                running_on(state)
            await chance.choice(processes).ended(state)

        await asyncio.gather(*(work(state) for state in states))
        for run, limit in enumerate(tree.limits):
            total = used(states[r] for r in tree.below(run))
            assert within(limit, total)
            if limit is not None and limit != Budget():
                told = await ledger_over(store, tree, run)
                assert told.spent_by(tree.name(run)).tokens == total.tokens
                if limit.cost_micros is not None:
                    assert told.spent_by(tree.name(run)) == total
                assert not told.reserving("")

    play(story)


async def ledger_over(store: EventStore, tree: Tree, run: int) -> Ledger:
    """The ledger of the outermost run with a budget over ``run``."""
    top = [tree.name(r) for r in tree.path(run) if tree.limits[r] not in (None, Budget())][-1]
    made = Ledger(top)
    for message in await store.log.read(store.subjects.state("budget", "", top)):
        made.apply(message.seq, decode(message.data))
    return made
