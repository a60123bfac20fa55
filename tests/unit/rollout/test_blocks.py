"""The book of the KV pool, against a simple model of what every row holds."""

import hypothesis.strategies as st
import pytest
from hypothesis import settings
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, initialize, invariant, rule

from temper.rollout.engine.torch.arena import Row
from temper.rollout.engine.torch.blocks import Pool
from temper.rollout.engine.torch.context import Context, Course, block_key
from temper.rollout.engine.torch.memory import longest_context
from temper.rollout.engine.torch.sizes import BLOCK, CLASSES, SEGMENT, UNIT, layout, peak_units, units_for

VOCAB = 2  # few tokens, so that contexts share prefixes


class Slots:
    """Memory of one number per slot."""

    def __init__(self, units: int) -> None:
        self.numbers: list[object] = [None] * (units * UNIT)

    def move(self, source: int, target: int, size: int) -> None:
        self.numbers[target : target + size] = self.numbers[source : source + size]

    def swap(self, one: int, two: int, size: int) -> None:
        first = self.numbers[one : one + size]
        self.move(two, one, size)
        self.numbers[two : two + size] = first

    def copy(self, source: Row, at: int, target: Row, to: int, count: int) -> None:
        self.numbers[target.start + to : target.start + to + count] = self.numbers[
            source.start + at : source.start + at + count
        ]


class PoolMachine(RuleBasedStateMachine):
    """Contexts come, grow, fork and go; each must always read back what it wrote."""

    contexts = Bundle("contexts")

    @initialize(units=st.integers(3, 6))
    def build(self, units: int) -> None:
        self.slots = Slots(units)
        self.pool = Pool(units, self.slots)
        self.live: dict[int, tuple[Context, list[int]]] = {}
        self.serial = 0

    def write(self, context: Context, tokens: list[int], start: int) -> None:
        """What a forward does: the KV of a token is the prefix that ends in it."""
        for at in range(start, len(tokens)):
            row = context.rows[at // SEGMENT]
            self.slots.numbers[row.start + at % SEGMENT] = (context.salt, tuple(tokens[: at + 1]))
        context.done = len(tokens)
        context.publish(self.pool, tokens)

    @rule(
        target=contexts,
        seed=st.integers(0, 3),
        length=st.integers(1, 600),
        salt=st.sampled_from([b"a", b"b"]),
    )
    def admit(self, seed: int, length: int, salt: bytes) -> int:
        self.serial += 1
        # Prompts of one seed share a prefix and then differ.
        tokens = [seed] * (length * 2 // 3) + [self.serial % 3] * (length - length * 2 // 3)
        context = Context(salt, Course(exact=False))
        found = context.match(self.pool, tokens)
        needs = layout(length + 1)
        if not context.adopt(self.pool, found, length + 1, lambda shared: self.pool.fits(needs[shared:])):
            return 0
        for at in range(context.done):
            self.check(context, tokens, at)
        self.write(context, tokens, context.done)
        self.live[self.serial] = (context, tokens)
        return self.serial

    @rule(name=contexts, count=st.integers(1, 90))
    def grow(self, name: int, count: int) -> None:
        if name not in self.live:
            return
        context, tokens = self.live[name]
        for _ in range(count):
            if not self.pool.fits(context.needs(len(tokens) + 1)):
                return
            context.widen(self.pool, len(tokens) + 1)
            tokens.append(name % 5)
            self.write(context, tokens, len(tokens) - 1)

    @rule(target=contexts, name=contexts)
    def fork(self, name: int) -> int:
        if name not in self.live:
            return 0
        context, tokens = self.live[name]
        tail = layout(len(tokens) + 1)[-1]
        if not self.pool.fits([tail]):
            return 0
        self.serial += 1
        forked = context.fork(self.pool, [self.pool.take(tail)], Course(exact=False))
        self.live[self.serial] = (forked, list(tokens))
        return self.serial

    @rule(name=consumes(contexts))
    def finish(self, name: int) -> None:
        if name in self.live:
            self.live.pop(name)[0].free(self.pool)

    @rule()
    def forget(self) -> None:
        self.pool.forget()
        for context, _ in self.live.values():
            context.sealed = True
        assert self.pool.book().evictable == 0

    def check(self, context: Context, tokens: list[int], at: int) -> None:
        row = context.rows[at // SEGMENT]
        assert self.slots.numbers[row.start + at % SEGMENT] == (context.salt, tuple(tokens[: at + 1]))

    @invariant()
    def every_context_reads_what_was_written(self) -> None:
        for context, tokens in self.live.values():
            for at in {0, len(tokens) // 2, len(tokens) - 1}:
                self.check(context, tokens, at)

    @invariant()
    def blocks_are_conserved_and_rows_do_not_overlap(self) -> None:
        book = self.pool.book()
        assert book.free + book.evictable + book.held == book.total
        assert min(book.free, book.evictable, book.held) >= 0
        rows = {row for context, _ in self.live.values() for row in context.rows}
        assert sum(row.size for row in rows) == book.held * BLOCK
        cached = [row for arena in self.pool.arenas.values() for row in arena.rows if not row.refs]
        taken: set[int] = set()
        for row in (*rows, *cached):
            assert row.start % 32 == 0
            assert row.start // UNIT == (row.start + row.size - 1) // UNIT
            slots = set(range(row.start, row.start + row.size, BLOCK))
            assert not taken & slots
            taken |= slots

    @invariant()
    def rows_in_use_are_dense_but_for_a_few_asleep(self) -> None:
        for arena in self.pool.arenas.values():
            unused = {row for row in arena.rows[: arena.active] if not row.refs}
            assert unused == set(arena.asleep)
            assert len(unused) <= arena.active // 8
            assert not any(row.refs for row in arena.rows[arena.active :])
            assert all(row.index == i for i, row in enumerate(arena.rows))
            assert len(arena.rows) > (len(arena.units) - 1) * arena.per_unit or not arena.units

    @invariant()
    def whatever_fits_can_be_taken(self) -> None:
        counts = {size: arena.used for size, arena in self.pool.arenas.items()}
        for size in CLASSES:
            assert self.pool.fits([size]) == (
                units_for({**counts, size: counts[size] + 1}) <= self.pool.units
            )


TestPool = PoolMachine.TestCase
TestPool.settings = settings(max_examples=25, stateful_step_count=25, deadline=None)


def filled(pool: Pool, tokens: list[int], salt: bytes = b"s") -> Context:
    context = Context(salt, Course(exact=False))
    found = context.match(pool, tokens)
    assert context.adopt(pool, found, len(tokens) + 1, lambda _: True)
    context.done = len(tokens)
    context.publish(pool, tokens)
    return context


def test_vllm_12621_a_hash_collision_never_reuses_the_kv_of_another_prompt(monkeypatch: pytest.MonkeyPatch):
    """vllm PR#12621, openvino.genai#3722: here every key collides, and still nothing is shared."""
    monkeypatch.setattr("temper.rollout.engine.torch.context.block_key", lambda *_: b"the same")
    pool = Pool(4, Slots(4))
    filled(pool, [1] * 40).free(pool)
    other = Context(b"s", Course(exact=False))
    assert other.match(pool, [2] * 40) == []
    assert other.done == 0


def test_keys_chain_over_tokens_parent_and_salt():
    keys = {
        block_key(parent, tokens, cuts)
        for parent in (b"v1", b"v2")
        for tokens in ([1] * 16, [1] * 15 + [2])
        for cuts in ((), (0, 16), (0, 8))
    }
    assert len(keys) == 12


def test_tenants_and_versions_never_share():
    pool = Pool(4, Slots(4))
    filled(pool, [1] * 40, b"tenant one").free(pool)
    assert Context(b"tenant two", Course(exact=False)).match(pool, [1] * 40) == []
    assert len(Context(b"tenant one", Course(exact=False)).match(pool, [1] * 40)) == 2


def test_what_depends_on_a_row_is_evicted_before_it():
    pool = Pool(2, Slots(2))
    filled(pool, list(range(3)) * 200).free(pool)  # two full segments and a tail
    taken = [pool.take(SEGMENT) for _ in range(3)]
    again = Context(b"s", Course(exact=False))
    again.match(pool, list(range(3)) * 200)
    assert again.done == 512  # the tail went first
    for row in taken:
        pool.drop(row)


def test_the_last_token_is_always_left_to_compute():
    pool = Pool(2, Slots(2))
    filled(pool, [5] * 32).free(pool)
    again = Context(b"s", Course(exact=False))
    assert len(again.match(pool, [5] * 32)) == 2
    assert again.done == 31


def test_nano_vllm_211_a_hit_is_held_before_its_sequence_takes_memory():
    """nano-vllm PR#211/#233: counting first would evict the very blocks that were found."""
    pool = Pool(2, Slots(2))
    tokens = [7] * 250
    filled(pool, tokens).free(pool)
    other = pool.take(64)  # the second unit
    again = Context(b"s", Course(exact=False))
    found = again.match(pool, tokens)
    assert again.done == 240
    assert again.adopt(pool, found, 251, lambda shared: pool.fits(layout(251)[shared:]))
    assert again.rows[0].start != found[0].row.start or found[0].row.refs
    pool.drop(other)


@pytest.mark.parametrize("units", [2, 3, 5])
def test_a_context_up_to_the_limit_can_grow_alone_from_any_length(units: int):
    limit = longest_context(units * UNIT, 10_000)
    for begin in (1, 63, 64, 200, 255, 256, limit // 2):
        pool = Pool(units, Slots(units))
        context = Context(b"s", Course(exact=True))
        assert context.adopt(pool, [], begin, lambda _, pool=pool, n=begin: pool.fits(layout(n)))
        for length in range(begin, limit + 1):
            assert pool.fits(context.needs(length))
            context.widen(pool, length)
    assert peak_units(limit) <= units < peak_units(limit + 1)
