"""Where drafts come from: published vectors, siblings that help each other, and bounds."""

import itertools
import random

import pytest

from temper.rollout.engine.torch.drafts import Drafts, NGrams, Pace, Suffixes


@pytest.mark.parametrize(
    ("history", "size", "most", "draft"),
    [
        ([1, 2, 3, 4, 1, 2, 3], 2, 3, (4, 1, 2)),
        ([1, 2, 3, 4, 1, 2, 3, 5, 6], 2, 3, ()),
        ([1, 2, 3, 4, 1, 2, 3, 5, 6], 2, 1, ()),
        ([1, 3, 6, 2, 3, 4, 1, 2, 3], 2, 3, (4, 1, 2)),
        ([1, 3, 6, 2, 3, 4, 1, 2, 3], 1, 2, (6, 2)),
        ([1, 2, 3, 100, 1, 2, 3, 200, 1, 2, 3, 300, 1, 2, 3], 3, 2, (100, 1)),
        ([7], 1, 2, ()),
        ([7], 2, 2, ()),
        ([7, 7], 1, 5, (7,)),
    ],
)
def test_ngram_vectors(history: list[int], size: int, most: int, draft: tuple[int, ...]):
    assert NGrams(size, size).propose(history, most) == draft


def test_the_longest_ngram_wins():
    history = [2, 3, 9, 9, 1, 2, 3, 4, 1, 2, 3]
    assert NGrams(2, 3).propose(history, 1) == (4,)
    assert NGrams(2, 2).propose(history, 1) == (9,)


def slow_ngram(tokens: list[int], shortest: int, longest: int, most: int) -> tuple[int, ...]:
    for size in range(longest, shortest - 1, -1):
        for end in range(size, len(tokens)):
            if tokens[end - size : end] == tokens[-size:] and size <= len(tokens):
                return tuple(tokens[end : end + most])
    return ()


def test_ngrams_of_a_growing_context_equal_a_plain_search():
    chance = random.Random(3)
    for _ in range(30):
        source, tokens = NGrams(1, 3), [chance.randrange(4)]
        for _ in range(40):
            assert source.propose(tokens, 4) == slow_ngram(tokens, 1, 3, 4)
            tokens += [chance.randrange(4) for _ in range(chance.randrange(1, 4))]


def test_suffixes_prefer_the_longest_match_and_then_the_majority():
    table = Suffixes()
    for said in ([1, 2, 3, 10, 11], [9, 2, 3, 20, 21], [8, 2, 3, 20, 22]):
        table.learn(said, 0)
    assert table.propose([1, 2, 3], 2) == (10, 11)  # three tokens match, not two
    assert table.propose([0, 2, 3], 2) == (
        20,
        22,
    )  # two matches of equal length say 20, the later one goes on with 22
    assert table.propose([0, 2, 3], 0) == ()
    assert table.propose([2, 9], 3) == ()


def test_a_context_does_not_match_its_own_end():
    table, tokens = Suffixes(), [1, 2, 3, 1, 2]
    table.learn(tokens, 0)
    assert table.propose(tokens, 3) == (3, 1, 2)
    lonely = [5, 6, 7]
    table.learn(lonely, 0)
    assert table.propose(lonely, 3) == ()


def test_a_table_forgets_the_generation_before_the_last():
    table = Suffixes(capacity=100)
    table.learn([1000 + i for i in range(50)], 0)
    assert table.propose([1000, 1001], 1) == (1002,)
    for start in range(0, 400, 40):
        table.learn([start + i for i in range(40)], 0)
        assert len(table._young) + len(table._old) < 300
    assert table.propose([1000, 1001], 1) == ()
    assert table.propose([360, 361], 1) == (362,)


def test_places_of_one_anchor_are_bounded():
    table, tokens = Suffixes(), [1] * 1000
    table.learn(tokens, 0)
    assert [len(places) for places in table._young.values()] == [8]
    assert table.propose(tokens, 4) == (1,) * 4


def test_a_loop_is_copied_beyond_what_was_said():
    table, tokens = Suffixes(), [1, 2, 3, 1, 2]
    table.learn(tokens, 0)
    assert table.propose(tokens, 7) == (3, 1, 2, 3, 1, 2, 3)


def test_siblings_share_a_table_and_strangers_do_not():
    drafts = Drafts("suffix")
    elder = [1, 2, 3, 4, 5, 6, 7, 8]
    assert drafts.propose("a", "group", elder, 4) == ()
    assert drafts.propose("b", "group", [9, 2, 3], 4) == (4, 5, 6)
    assert drafts.propose("c", "other", [9, 2, 3], 4) == ()
    assert drafts.propose("d", "", [9, 2, 3], 4) == ()
    drafts.close("a")
    assert drafts.propose("e", "group", [0, 4, 5], 4) == (6, 7, 8)


def test_the_tables_of_silent_groups_are_forgotten():
    drafts = Drafts("suffix", tables=2)
    for group in ("one", "two", "three"):
        drafts.propose(f"{group}-0", group, [1, 2, 3, 4], 4)
    assert drafts.propose("x", "three", [1, 2], 4) == (3, 4)
    assert drafts.propose("y", "one", [1, 2], 4) == ()


def test_a_draft_has_no_more_tokens_than_there_is_room():
    drafts = Drafts("ngram")
    tokens = [1, 2, 3, 4, 1, 2]
    assert drafts.propose("a", "", tokens, 1) == (3,)
    assert drafts.propose("b", "", tokens, 0) == ()
    assert drafts.propose("c", "", tokens, 9) == (3, 4, 1)


def steps_of(tokens: list[int], drafts: Drafts) -> tuple[int, int]:
    """Steps and verified tokens that a known continuation takes after its first four tokens."""
    context, steps, fed = tokens[:4], 0, 0
    while len(context) < len(tokens):
        room = len(tokens) - len(context) - 1
        draft = drafts.propose("a", "", context, room)
        follows = tokens[len(context) : len(context) + len(draft)]
        right = len(
            list(itertools.takewhile(lambda pair: pair[0] == pair[1], zip(draft, follows, strict=True)))
        )
        context += tokens[len(context) : len(context) + right + 1]
        steps, fed = steps + 1, fed + len(draft)
    return steps, fed


@pytest.mark.parametrize("kind", ["ngram", "suffix"])
def test_a_text_that_repeats_takes_few_steps(kind: str):
    steps, _ = steps_of([1, 2, 3, 4, 5] * 40, Drafts(kind))
    assert steps < 40


@pytest.mark.parametrize("kind", ["ngram", "suffix"])
def test_a_text_that_misleads_is_soon_left_alone(kind: str):
    """Pairs repeat and what follows never does: every draft is wrong."""
    tokens = [token for i in range(100) for token in (1, 2, 1000 + i)]
    steps, fed = steps_of(tokens, Drafts(kind))
    assert steps <= len(tokens) - 4
    assert fed < 100


def test_the_pace_rises_when_right_and_falls_when_wrong():
    pace = Pace()
    tokens = list(range(100))
    for at, expected in ((0, 3), (3, 7), (10, 7)):
        assert pace.observe(tokens) == expected
        pace.pending = (at, tuple(range(at, at + expected)))
    pace.observe(tokens)
    pace.pending = (30, (30, 31, -1, -1))
    assert pace.observe(tokens) == 3
    for failures in (1, 2, 3):
        pace.pending = (40, (-1, -1))
        assert [pace.observe(tokens) for _ in range(failures)] == [0] * failures
        assert pace.observe(tokens) == 1
