"""The schedule over a model whose outputs tell whether every token was read where it was written."""

import hypothesis.strategies as st
import pytest
from hypothesis import settings
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule
from tests.unit.rollout.chain import ChainModel, chain_loop, expected, greedy, version

from temper.rollout.engine.base import Completion, FinishReason, SwapPolicy
from temper.rollout.engine.torch.loop import Loop
from temper.rollout.engine.torch.schedule import AGE_STEPS


def conserved(loop: Loop) -> bool:
    book = loop.pool.book()
    return book.free + book.evictable + book.held == book.total and min(book.free, book.evictable) >= 0


def drain(loop: Loop) -> dict[str, Completion]:
    return {one.request_id: one for one in loop.drain()[1]}


def run(loop: Loop, steps: int = 10_000) -> dict[str, Completion]:
    done = drain(loop)
    for _ in range(steps):
        if not loop.step():
            return done
        assert conserved(loop)
        done |= drain(loop)
    raise AssertionError("it does not come to an end")


class ScheduleMachine(RuleBasedStateMachine):
    """Requests of all kinds on a pool that is too small, with cancels and swaps at any step."""

    @initialize(units=st.integers(3, 8), exact=st.booleans(), prefill=st.sampled_from([16, 256, 700]))
    def build(self, units: int, exact: bool, prefill: int) -> None:
        self.loop = chain_loop(units=units, exact=exact, prefill=prefill, slots=5, context=600)
        self.open: dict[str, tuple[list[int], int]] = {}  # context and output length asked for
        self.kept: dict[str, list[int]] = {}
        self.serial, self.version = 0, 1

    @rule(
        length=st.integers(1, 400),
        count=st.integers(1, 60),
        copies=st.integers(1, 4),
        priority=st.integers(0, 2),
        keep=st.booleans(),
        kind=st.integers(0, 2),
    )
    def submit(self, length: int, count: int, copies: int, priority: int, keep: bool, kind: int) -> None:
        tokens = [kind + 1] * length
        for _ in range(copies):
            self.serial += 1
            name = f"r{self.serial}"
            self.open[name] = (tokens, count)
            self.loop.add(greedy(name, tokens, count, priority=priority, keep=keep))

    @rule(count=st.integers(1, 40), more=st.integers(1, 100))
    def go_on(self, count: int, more: int) -> None:
        if not self.kept:
            return
        kept, before = self.kept.popitem()
        if len(before) + more + count >= 600:
            self.loop.schedule.release(kept)
            return
        self.serial += 1
        name = f"r{self.serial}"
        self.open[name] = ([*before, *[9] * more], count)
        self.loop.add(greedy(name, [9] * more, count, continues=kept, keep=True))

    @rule(steps=st.integers(1, 40))
    def step(self, steps: int) -> None:
        for _ in range(steps):
            self.loop.step()
            self.collect()

    @rule(which=st.integers(0, 50))
    def cancel(self, which: int) -> None:
        if self.open:
            self.loop.cancel(list(self.open)[which % len(self.open)])
            self.collect()

    @rule(policy=st.sampled_from([p for p in SwapPolicy if p is not SwapPolicy.WAIT]))
    def swap(self, policy: SwapPolicy) -> None:
        self.version += 1
        self.loop.swap(version(self.version), policy)
        self.collect()

    def collect(self) -> None:
        for name, done in drain(self.loop).items():
            tokens, count = self.open.pop(name)
            versions = {span.version for span in done.weight_versions + done.kv_origin_versions}
            if len(versions) == 1:
                assert list(done.tokens) == expected(tokens, len(done.tokens), versions.pop())
            if done.finish is FinishReason.LENGTH:
                assert len(done.tokens) == count
                if name in self.loop.schedule.kept:
                    self.kept[name] = [*tokens, *done.tokens]

    @invariant()
    def blocks_are_conserved(self) -> None:
        assert conserved(self.loop)

    def teardown(self) -> None:
        for _ in range(20_000):
            if not self.loop.step():
                break
            self.collect()
        assert not self.open
        for name in list(self.loop.schedule.kept):
            self.loop.schedule.release(name)
        assert self.loop.pool.book().held == 0


TestSchedule = ScheduleMachine.TestCase
TestSchedule.settings = settings(max_examples=25, stateful_step_count=15, deadline=None)


def test_a_preempted_sequence_goes_on_where_it_was():
    loop = chain_loop(units=3, slots=8)
    for i in range(8):
        loop.add(greedy(f"r{i}", [i + 1] * 120, 200))
    done = run(loop)
    assert loop.schedule.preemptions > 0
    for i in range(8):
        assert list(done[f"r{i}"].tokens) == expected([i + 1] * 120, 200, 1)


@pytest.mark.parametrize("exact", [True, False])
def test_nano_vllm_211_who_was_preempted_comes_back_through_its_own_blocks(exact: bool):
    """nano-vllm PR#211/#233: the hit is found and held before memory is counted."""
    loop = chain_loop(units=6, exact=exact)
    loop.add(greedy("x", [1] * 300, 100))
    for _ in range(20):
        loop.step()
    (sequence,) = loop.schedule.admitted
    known = len(sequence.tokens)
    computed = loop.prefilled
    loop.schedule.put_back(sequence)
    loop.step()
    assert sequence.context is not None
    assert sequence.context.done >= (known - 1) // 16 * 16
    assert loop.prefilled - computed < 16
    assert list(run(loop)["x"].tokens) == expected([1] * 300, 100, 1)


def test_the_newest_of_the_lowest_priority_makes_room():
    loop = chain_loop(units=2, slots=8)
    for name, priority in (("old", 0), ("new", 0), ("high", 5), ("higher", 6)):
        loop.add(greedy(name, [len(name)] * 120, 200, priority=priority))
    left: list[str] = []
    while loop.step():
        waiting = [sequence.request.request_id for sequence in loop.schedule.waiting]
        left += [name for name in waiting if name not in left]
    assert left[0] == "new"
    assert not {"high", "higher"} & set(left)


def test_who_waits_long_enough_overtakes_a_higher_priority():
    loop = chain_loop(units=8, slots=1)
    loop.add(greedy("old", [1], 1, priority=0))
    loop.schedule.waiting[0].arrived -= 2 * AGE_STEPS
    loop.add(greedy("new", [2], 1, priority=1))
    assert list(run(loop)) == ["old", "new"]


def test_one_budget_holds_decode_rows_and_prefill_chunks():
    loop = chain_loop(units=20, slots=8, prefill=256, context=2000)
    for i in range(8):
        loop.add(greedy(f"r{i}", [i + 1] * 500, 20))
    run(loop)
    assert isinstance(loop._model, ChainModel)
    assert loop._model.rows <= 256 + 255


def test_a_group_computes_its_prompt_once_and_shares_its_full_segments():
    loop = chain_loop(units=20, slots=8, prefill=4096, context=2000)
    for i in range(8):
        loop.add(greedy(f"g{i}", [3] * 1024, 8, group="g"))
    loop.step()
    loop.step()
    assert loop.prefilled == 1024  # naive: 8 * 1024
    assert loop.pool.book().held == 4 * 16 + 8 * 4  # four shared segments, eight tails of 64
    for done in run(loop).values():
        assert list(done.tokens) == expected([3] * 1024, 8, 1)


def test_members_that_arrive_while_the_prompt_is_computed_share_it():
    loop = chain_loop(units=20, slots=8, prefill=256, context=2000)
    for i in range(4):
        loop.add(greedy(f"g{i}", [3] * 1024, 8, group="g"))
        loop.step()  # one segment
    assert loop.prefilled == 1024
    assert loop.pool.book().held == 4 * 16 + 4 * 4  # four shared segments, four tails of 64
    for done in run(loop).values():
        assert list(done.tokens) == expected([3] * 1024, 8, 1)


def test_nobody_joins_a_prompt_that_was_begun_under_older_weights():
    loop = chain_loop(units=20, slots=8, prefill=256, context=2000)
    loop.add(greedy("old", [3] * 1024, 8, group="g"))
    loop.step()
    loop.swap(version(2), SwapPolicy.KEEP)
    loop.add(greedy("new", [3] * 1024, 8, group="g"))
    done = run(loop)
    assert [span.version for span in done["old"].prefill_versions] == [1, 2]
    assert [span.version for span in done["new"].prefill_versions] == [2]
    assert list(done["new"].tokens) == expected([3] * 1024, 8, 2)


def test_group_members_are_admitted_together_before_others_of_their_rank():
    loop = chain_loop(units=20, slots=3)
    for name, token in (("a0", 1), ("b", 2), ("a1", 1), ("a2", 1)):
        loop.add(greedy(name, [token] * 20, 5, group=name[0]))
    loop.step()
    assert [s.request.request_id for s in loop.schedule.admitted] == ["a0", "a1", "a2"]


@pytest.mark.parametrize("leave", ["g0", "g1"])
def test_a_member_that_leaves_during_prefill_takes_nothing_from_the_others(leave: str):
    loop = chain_loop(units=20, prefill=16, context=2000)
    for i in range(3):
        loop.add(greedy(f"g{i}", [4] * 600, 3))
    loop.step()
    loop.cancel(leave)
    done = run(loop)
    assert loop.prefilled == 600
    for name in {"g0", "g1", "g2"} - {leave}:
        assert list(done[name].tokens) == expected([4] * 600, 3, 1)
    assert loop.pool.book().held == 0


def test_kept_sequences_make_room_and_are_computed_again():
    loop = chain_loop(units=3, exact=False)
    loop.add(greedy("first", [1] * 300, 10, keep=True))
    first = run(loop)["first"]
    for i in range(4):
        loop.add(greedy(f"n{i}", [i + 2] * 500, 50))
    run(loop)
    loop.add(greedy("second", [7] * 5, 10, continues="first"))
    second = run(loop)["second"]
    assert second.cached_tokens < 309
    assert list(second.tokens) == expected([*[1] * 300, *first.tokens, *[7] * 5], 10, 1)


def test_vllm_9744_no_block_of_one_version_serves_a_request_of_another():
    """vllm#9744, NeMo-RL PR#4018: even when running sequences keep their KV."""
    loop = chain_loop(units=20, context=2000)
    prompt = [5] * 1100
    loop.add(greedy("old", prompt, 100))
    for _ in range(30):
        loop.step()
    loop.swap(version(2), SwapPolicy.KEEP)
    loop.add(greedy("fresh", prompt, 5))
    loop.add(greedy("other", [*prompt, 1], 5))
    done = run(loop)
    assert done["fresh"].cached_tokens < 50
    assert list(done["fresh"].tokens) == expected(prompt, 5, 2)
    assert list(done["other"].tokens) == expected([*prompt, 1], 5, 2)
    assert [span.version for span in done["old"].weight_versions] == [1, 2]
    assert {span.version for span in done["old"].kv_origin_versions} == {1}
    loop.add(greedy("warm", prompt, 5))
    assert run(loop)["warm"].cached_tokens > 1000


def test_kept_kv_of_an_old_version_is_computed_again():
    loop = chain_loop(units=20)
    loop.add(greedy("a", [1] * 100, 5, keep=True))
    before = run(loop)["a"]
    loop.swap(version(2), SwapPolicy.KEEP)
    loop.add(greedy("b", [2], 5, continues="a"))
    done = run(loop)["b"]
    assert done.cached_tokens == 0
    assert list(done.tokens) == expected([*[1] * 100, *before.tokens, 2], 5, 2)


@pytest.mark.parametrize("exact", [True, False])
@pytest.mark.parametrize("more", [1, 5, 6, 20, 170])
def test_a_chunk_never_reaches_behind_the_rows_taken_so_far(exact: bool, more: int):
    """Two runs of prompt, laid in one step after an update: the second may need a larger row than the first has."""
    loop = chain_loop(units=20, exact=exact)
    loop.add(greedy("a", [1] * 90, 1, keep=True))
    before = run(loop)["a"]
    loop.swap(version(2), SwapPolicy.KEEP)
    loop.add(greedy("b", [2] * more, 5, continues="a"))
    assert list(run(loop)["b"].tokens) == expected([*[1] * 90, *before.tokens, *[2] * more], 5, 2)


@pytest.mark.parametrize("exact", [True, False])
def test_kept_kv_of_two_versions_is_computed_again(exact: bool):
    """What ran across an update may keep its KV; the request that continues it is admitted under one version."""
    loop = chain_loop(units=20, exact=exact)
    loop.add(greedy("a", [1] * 100, 30, keep=True))
    for _ in range(10):
        loop.step()
    loop.swap(version(2), SwapPolicy.KEEP)
    before = run(loop)["a"]
    assert {span.version for span in before.kv_origin_versions} == {1}
    assert loop.pool.book().held == 0
    loop.add(greedy("b", [2], 5, continues="a", keep=True))
    done = run(loop)["b"]
    assert [span.version for span in done.kv_origin_versions] == [2]
    assert list(done.tokens) == expected([*[1] * 100, *before.tokens, 2], 5, 2)
    loop.add(greedy("c", [3], 5, continues="b"))
    after = run(loop)["c"]
    assert after.cached_tokens == 100 + 30 + 1 + 4
    assert list(after.tokens) == expected([*[1] * 100, *before.tokens, 2, *done.tokens, 3], 5, 2)


@pytest.mark.parametrize("policy", [SwapPolicy.RECOMPUTE, SwapPolicy.REQUEUE])
def test_recomputed_sequences_go_on_as_if_the_new_version_had_read_all(policy: SwapPolicy):
    loop = chain_loop(units=20)
    loop.add(greedy("x", [1] * 40, 20))
    for _ in range(5):
        loop.step()
    old = expected([1] * 40, 5, 1)
    loop.swap(version(2), policy)
    done = run(loop)["x"]
    assert list(done.tokens) == [*old, *expected([*[1] * 40, *old], 15, 2)]
    assert [(span.start, span.version) for span in done.kv_origin_versions] == [(0, 1), (5, 2)]


def test_requeued_sequences_wait_behind_those_that_waited():
    loop = chain_loop(units=20, slots=1)
    loop.add(greedy("first", [1], 10))
    loop.add(greedy("second", [2], 2))
    loop.step()
    loop.swap(version(2), SwapPolicy.REQUEUE)
    assert list(run(loop)) == ["second", "first"]


def test_vllm_53812_drafts_stay_inside_the_limit():
    """vllm PR#53812: one place is the bonus token's."""
    loop = chain_loop(units=20, exact=False, context=100)
    asked: list[int] = []

    def propose(sequence, most):
        asked.append(most)
        return tuple(expected(sequence.tokens, min(most, 4), 1))

    loop.schedule.proposer = propose
    loop.add(greedy("x", [1] * 90, 50))
    done = run(loop)["x"]
    assert list(done.tokens) == expected([1] * 90, 10, 1)
    assert done.drafts_accepted == 10 - loop.steps
    assert 0 < loop.steps < 10
    assert max(asked) == 8


def test_wrong_drafts_change_nothing():
    loop = chain_loop(units=20, exact=False)
    loop.schedule.proposer = lambda sequence, most: (1, 2, 3)[:most]
    loop.add(greedy("x", [1] * 60, 250))
    done = run(loop)["x"]
    assert list(done.tokens) == expected([1] * 60, 250, 1)
    assert loop.proposed > 0
