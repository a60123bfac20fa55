"""The twin's book of blocks against a model that only counts, and its batch at the moments that matter."""

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from temper.rollout.engine.base import FinishReason, Request, Sampling, SwapPolicy
from temper.rollout.engine.book import BLOCK, Book
from temper.rollout.engine.fake_batch import Batch, Weights

TOTAL = 6


class BookMachine(RuleBasedStateMachine):
    """Sequences over an alphabet of two blocks, so that prefixes meet often."""

    def __init__(self) -> None:
        super().__init__()
        self.book = Book(TOTAL)
        self.held: list[tuple[list[int], list]] = []
        self.version = 0

    @rule(letters=st.lists(st.integers(0, 1), min_size=1, max_size=4), tenant=st.sampled_from(["", "a"]))
    def admit(self, letters: list[int], tenant: str) -> None:
        tokens = [letter for letter in letters for _ in range(BLOCK)]
        namespace = (self.version, tenant)
        blocks = self.book.match(namespace, tokens, len(letters))
        for index, block in enumerate(blocks):
            assert block.key is not None
            assert block.key[1] == tuple(tokens[index * BLOCK : (index + 1) * BLOCK])
            assert block.key[0] == (blocks[index - 1].serial if index else namespace)
        if len(letters) - len(blocks) > self.book.available:
            self.book.drop(blocks)
            return
        while len(blocks) < len(letters):
            blocks.append(self.book.take())
        for index in range(len(letters)):
            self.book.publish(blocks, index, namespace, tokens[index * BLOCK : (index + 1) * BLOCK])
        assert self.book.match(namespace, tokens, len(letters)) == blocks
        self.book.drop(blocks)
        self.held.append((tokens, blocks))

    @precondition(lambda self: self.held)
    @rule(at=st.integers(0, 9))
    def finish(self, at: int) -> None:
        _, blocks = self.held.pop(at % len(self.held))
        self.book.drop(blocks)

    @rule()
    def swap(self) -> None:
        self.book.forget()
        self.version += 1
        assert not self.book.match((self.version, ""), [0] * BLOCK, 1)

    @invariant()
    def adds_up(self) -> None:
        counts = self.book.counts()
        assert counts.free + counts.evictable + counts.held == TOTAL
        assert counts.held == len({block.serial for _, blocks in self.held for block in blocks})
        assert min(counts.free, counts.evictable, counts.held) >= 0


BookMachine.TestCase.settings = settings(max_examples=60, stateful_step_count=30, deadline=None)
test_book_of_blocks = BookMachine.TestCase


def batch(kv_tokens: int = 64, slots: int = 8) -> Batch:
    made = Batch(slots=slots, kv_tokens=kv_tokens, lengths=None)
    made.vocab = 32
    made.swap(Weights(1, 77), SwapPolicy.KEEP)
    return made


def ask(name: str, size: int, count: int = 40, sample: int = 0, **fields) -> Request:
    return Request(name, tuple(range(size)), Sampling(count), 1, sample, **fields)


def run(made: Batch, most: int = 500) -> list:
    for _ in range(most):
        if not made.has_work:
            break
        made.step(0.0)
    assert not made.has_work, "it went on for ever"
    finished, made.finished = made.finished, []
    return finished


def test_a_leaf_is_evicted_before_its_parent():
    made = batch(kv_tokens=64)
    made.add(ask("long", 33, count=1), 64)
    run(made)
    counts = made.book.counts()
    assert (counts.evictable, counts.held) == (2, 0)
    made.add(Request("other", tuple(range(20, 31)) * 4, Sampling(1), 1, 0), 64)  # 44 tokens: three blocks
    run(made)
    left = made.book.match((1, ""), list(range(33)), 2)
    assert len(left) == 1  # the root is there, the leaf has made room


def test_waiting_sequences_that_hold_kv_give_it_up_for_the_first_in_line():
    made = batch(kv_tokens=64, slots=1)
    for name in ("a", "b"):
        made.add(ask(name, 20, count=2, keep=True), 64)
    run(made)
    made.add(ask("on-a", 30, count=4, continues="a"), 64)
    made.add(ask("on-b", 30, count=4, continues="b"), 64)
    assert [len(done.tokens) for done in run(made)] == [4, 4]


def test_ageing_lets_a_low_priority_in_at_last():
    made = batch(kv_tokens=1 << 12, slots=1)
    made.add(ask("low", 4, count=1), 64)
    order: list[str] = []
    for index in range(200):
        made.add(ask(f"high{index}", 4, count=1, priority=1), 64)
        made.step(0.0)
        order += [done.request_id for done in made.finished]
        made.finished.clear()
    assert "low" in order
    assert order.index("low") > 50


def test_a_preempted_sequence_is_computed_under_the_version_that_admits_it_again():
    made = batch(kv_tokens=64)
    made.add(ask("one", 20, count=20), 64)
    made.add(ask("two", 20, count=20, sample=1), 64)
    for _ in range(19):
        made.step(0.0)
        if made.preemptions:
            break
    assert made.preemptions == 1
    made.swap(Weights(2, 78), SwapPolicy.KEEP)
    finished = {done.request_id: done for done in run(made)}
    assert all(done.finish is FinishReason.LENGTH and len(done.tokens) == 20 for done in finished.values())
    one, two = finished["one"], finished["two"]
    assert [span.version for span in one.kv_origin_versions] == [1]
    assert [span.version for span in one.weight_versions] == [1, 2]
    assert two.kv_origin_versions == two.weight_versions
    assert [span.version for span in two.prefill_versions] == [2]


def test_recompute_under_want_of_memory_puts_back_who_does_not_fit():
    made = batch(kv_tokens=96)
    for index in range(3):
        made.add(ask(f"r{index}", 33, count=8), 96)  # two blocks shared, one each
    made.step(0.0)
    assert len(made.running) == 3
    made.swap(Weights(2, 78), SwapPolicy.RECOMPUTE)
    counts = made.book.counts()
    assert counts.free + counts.evictable + counts.held == counts.total
    assert {len(done.tokens) for done in run(made)} == {8}
