"""Sampling against a slow reference in plain Python, and drafts against exact enumeration and against statistics."""

import itertools
import math
from collections import Counter
from collections.abc import Sequence
from typing import Any

import pytest
import torch

from temper.rollout.engine.base import Sampling
from temper.rollout.engine.stream import stream_key
from temper.rollout.engine.torch.sample import Ask, Drawn, decide, invert, verify

VOCAB = 23


def logits_of(rows: int, vocab: int = VOCAB, seed: int = 0) -> torch.Tensor:
    return torch.randn(rows, vocab, generator=torch.Generator().manual_seed(seed)) * 2


def one(logits: torch.Tensor, sampling: Sampling, uniform: float, tokens: Sequence[int] = (1, 2)) -> Drawn:
    ask = Ask(sampling, 0, tokens, 1)
    return decide(logits[None], [ask], torch.tensor([uniform], dtype=torch.float64))[0]


# ---------------------------------------------------------------- the slow reference


def log_softmax(values: Sequence[float]) -> list[float]:
    top = max(values)
    total = math.log(sum(math.exp(value - top) for value in values))
    return [value - top - total for value in values]


def penalised(values: list[float], sampling: Sampling, context: Sequence[int], start: int) -> list[float]:
    for token in set(context):
        value, penalty = values[token], sampling.repetition_penalty
        values[token] = value / penalty if value > 0 else value * penalty
    for token, count in Counter(context[start:]).items():
        values[token] -= sampling.frequency_penalty * count + sampling.presence_penalty
    for token, addend in sampling.logit_bias:
        values[token] += addend
    return values


def kept_tokens(scaled: list[float], sampling: Sampling) -> set[int]:
    ranked = sorted(range(len(scaled)), key=lambda token: -scaled[token])
    if sampling.top_k:
        ranked = ranked[: sampling.top_k]
    total = sum(math.exp(scaled[token]) for token in ranked)
    kept, mass = [], 0.0
    for token in ranked:
        if kept and mass >= sampling.top_p * total:
            break
        kept.append(token)
        mass += math.exp(scaled[token])
    floor = sampling.min_p * math.exp(scaled[ranked[0]])
    return {token for token in kept if math.exp(scaled[token]) >= floor}


def slow(
    logits: list[float], sampling: Sampling, uniform: float, context: Sequence[int], start: int
) -> tuple[int, float, float, float]:
    """Token, raw and processed log probability, log surviving mass."""
    raw = log_softmax(logits)
    values = penalised(list(logits), sampling, context, start)
    if sampling.temperature == 0:
        token = max(range(len(values)), key=lambda index: values[index])
        return token, raw[token], 0.0, 0.0
    scaled = log_softmax([value / sampling.temperature for value in values])
    kept = kept_tokens(scaled, sampling)
    mass = sum(math.exp(scaled[token]) for token in kept)
    reached, token = 0.0, -1
    for token in sorted(kept):
        reached += math.exp(scaled[token])
        if reached > uniform * mass:
            break
    return token, raw[token], scaled[token] - math.log(mass), math.log(mass)


OPTIONS: dict[str, dict[str, Any]] = {
    "plain": {},
    "temperature": {"temperature": 0.7},
    "greedy": {"temperature": 0.0},
    "top_k": {"top_k": 5},
    "top_p": {"top_p": 0.8},
    "min_p": {"min_p": 0.1},
    "all truncations": {"top_k": 9, "top_p": 0.9, "min_p": 0.05, "temperature": 1.3},
    "repetition": {"repetition_penalty": 1.4},
    "presence": {"presence_penalty": 0.8},
    "frequency": {"frequency_penalty": 0.6},
    "bias": {"logit_bias": ((3, 4.0), (0, -2.5), (22, 100.0))},
    "ban": {"logit_bias": ((3, float("-inf")),), "top_k": 4},
    "greedy with penalties": {"temperature": 0.0, "frequency_penalty": 2.0, "repetition_penalty": 2.0},
    "everything": {
        "temperature": 0.9,
        "top_k": 12,
        "top_p": 0.95,
        "min_p": 0.01,
        "repetition_penalty": 1.2,
        "presence_penalty": 0.4,
        "frequency_penalty": 0.3,
        "logit_bias": ((1, 1.5),),
    },
}


@pytest.mark.parametrize("option", sorted(OPTIONS))
def test_every_option_equals_the_slow_reference(option: str):
    sampling = Sampling(1, **OPTIONS[option])
    context, start = [4, 4, 9, 3, 3, 3, 7, 20], 3
    logits = logits_of(40, seed=len(option))
    uniform = torch.rand(40, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    asks = [Ask(sampling, 0, context, start)] * 40
    for row, drawn in enumerate(decide(logits, asks, uniform)):
        token, raw, processed, surviving = slow(
            logits[row].tolist(), sampling, uniform[row].item(), context, start
        )
        assert drawn.tokens == [token]
        assert drawn.raw == pytest.approx([raw], abs=2e-6)
        assert drawn.processed == pytest.approx([processed], abs=2e-6)
        assert drawn.surviving == pytest.approx([surviving], abs=2e-6)


def test_a_row_does_not_depend_on_the_options_of_its_neighbours():
    logits = logits_of(len(OPTIONS), seed=5)
    asks = [
        Ask(Sampling(1, **options), stream_key(1, i), [1, 2, 2, 5], 2)
        for i, options in enumerate(OPTIONS.values())
    ]
    together = verify(logits, asks)
    for row, ask in enumerate(asks):
        assert verify(logits[row : row + 1], [ask]) == [together[row]]


def test_without_penalties_raw_at_temperature_minus_the_surviving_mass_is_processed():
    logits = logits_of(64, seed=2)
    ask = Ask(Sampling(1, temperature=0.8, top_p=0.7), 3, [1], 1)
    scaled = torch.log_softmax(logits.double() / 0.8, dim=-1)
    drawn = verify(logits, [ask] * 64)
    for row, done in enumerate(drawn):
        expected = scaled[row, done.tokens[0]].item() - done.surviving[0]
        assert done.processed[0] == pytest.approx(expected, abs=2e-6)
    assert min(done.surviving[0] for done in drawn) < -0.05


def test_top_logprobs_are_raw_and_likeliest_first():
    logits = logits_of(3, seed=3)
    ask = Ask(
        Sampling(1, temperature=0.0, logit_bias=((0, 50.0),), top_logprobs=4), 0, [1, 2], 2, draft=(0, 0)
    )
    (drawn,) = verify(logits, [ask])
    assert drawn.tokens == [0, 0, 0]
    values, ids = torch.log_softmax(logits, dim=-1).topk(4)
    for row, top in enumerate(drawn.top):
        assert [token for token, _ in top] == ids[row].tolist()
        assert [value for _, value in top] == values[row].tolist()
    (short,) = verify(logits[:1, :2], [Ask(Sampling(1, top_logprobs=9), 0, [1], 1)])
    assert len(short.top[0]) == 2


def test_samples_of_a_group_differ_and_a_seed_repeats():
    logits = logits_of(1).expand(64, -1)
    keys = [stream_key(7, i) for i in range(64)]
    tokens = [
        [one.tokens for one in verify(logits, [Ask(Sampling(1), key, [1], 1) for key in keys])]
        for _ in range(2)
    ]
    assert tokens[0] == tokens[1]
    assert len({token for (token,) in tokens[0]}) > 4


# ---------------------------------------------------------------- drafts: published vectors


def spiked(*argmax: int, vocab: int = 32) -> torch.Tensor:
    """Logits whose argmax per row is given."""
    return torch.nn.functional.one_hot(torch.tensor(argmax), vocab).float() * 100


GREEDY = Sampling(9, temperature=0.0)


@pytest.mark.parametrize(
    ("drafts", "targets", "outputs"),
    [
        ([[1, 2, 3]], [[1, 2, 3, 4]], [[1, 2, 3, 4]]),
        ([[1, 2, 3]], [[1, 5, 3, 4]], [[1, 5]]),
        ([[1, 2], [3, 4]], [[1, 5, 6], [3, 4, 7]], [[1, 5], [3, 4, 7]]),
        ([[], [2]], [[1], [2, 3]], [[1], [2, 3]]),
    ],
)
def test_greedy_drafts_go_on_while_they_are_right(
    drafts: list[list[int]], targets: list[list[int]], outputs: list[list[int]]
):
    logits = torch.cat([spiked(*target) for target in targets])
    asks = [Ask(GREEDY, 0, [9], 1, draft=tuple(draft)) for draft in drafts]
    drawn = verify(logits, asks)
    assert [one.tokens for one in drawn] == outputs
    assert [one.accepted for one in drawn] == [len(output) - 1 for output in outputs]


@pytest.mark.parametrize(("penalty", "output"), [(1.5, [1, 15]), (0.7, [1, 1, 15])])
def test_penalties_see_the_accepted_part_of_the_draft(penalty: float, output: list[int]):
    """Token 1 leads token 15 by 1.2: the first penalty undoes that at once, the second after two."""
    row = torch.full((32,), -100.0)
    row[1], row[15] = 11.2, 10.0
    ask = Ask(Sampling(9, temperature=0.0, frequency_penalty=penalty), 0, [9, 9], 2, draft=(1, 1, 1))
    assert verify(row.expand(4, -1), [ask])[0].tokens == output


# ---------------------------------------------------------------- drafts: the distribution

# A chain of three tokens: next token by last one, in sixteenths, so that sixteen uniforms enumerate it exactly.
CHAIN = torch.tensor([[8, 4, 2, 1, 1], [1, 1, 6, 4, 4], [2, 2, 2, 2, 8], [4, 4, 4, 2, 2], [0, 8, 8, 0, 0]])
CELLS = torch.arange(16, dtype=torch.float64).add(0.5) / 16


def rows_after(tokens: Sequence[int]) -> torch.Tensor:
    """Logits of the chain after each token."""
    return (CHAIN[list(tokens)].float() / 16).log()


def speculate(draft: tuple[int, ...], uniform: torch.Tensor, sampling: Sampling) -> tuple[int, ...]:
    """Three tokens after a 0, with one draft at the start and plain steps for the rest."""
    output: list[int] = []
    while len(output) < 3:
        guess = draft if not output else ()
        ask = Ask(sampling, 0, [0, *output], 1, draft=guess)
        last = output[-1] if output else 0
        (drawn,) = decide(rows_after([last, *guess]), [ask], uniform[len(output) :][: len(guess) + 1])
        output += drawn.tokens
    return tuple(output[:3])


@pytest.mark.parametrize("draft", [(0,), (1, 2), (3, 3)])
def test_the_joint_of_three_tokens_is_exact_by_enumeration(draft: tuple[int, ...]):
    found: Counter[tuple[int, ...]] = Counter()
    for cell in itertools.product(range(16), repeat=3):
        found[speculate(draft, CELLS[list(cell)], Sampling(9))] += 1
    for tokens in itertools.product(range(5), repeat=3):
        weights = [int(CHAIN[last, token]) for last, token in zip((0, *tokens), tokens, strict=False)]
        assert found[tokens] == math.prod(weights)


@pytest.mark.parametrize("draft", range(5))
def test_a_draft_is_accepted_with_its_probability_and_replaced_by_the_rest(draft: int):
    found = Counter(
        decide(rows_after([0, draft]), [Ask(Sampling(9), 0, [0], 1, draft=(draft,))], uniform.repeat(2))[
            0
        ].tokens[0]
        for uniform in CELLS[:, None]
    )
    assert [found[token] for token in range(5)] == CHAIN[0].tolist()
    rejected = {token: count for token, count in found.items() if token != draft}
    rest = 16 - int(CHAIN[0, draft])
    for token, count in rejected.items():
        assert count / sum(rejected.values()) == pytest.approx(int(CHAIN[0, token]) / rest)


@pytest.mark.parametrize(
    "sampling",
    [Sampling(9), Sampling(9, temperature=0.8, top_p=0.9), Sampling(9, frequency_penalty=0.9, top_k=3)],
    ids=["plain", "truncated", "penalised"],
)
def test_drafts_change_no_sample(sampling: Sampling):
    """Stronger than an equal distribution: the tokens that come are those that would come without drafts."""
    uniform = torch.rand(200, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(3))
    for row, draft in zip(uniform, itertools.cycle([(0,), (1, 2), (4, 1), (2, 4), (1, 4)]), strict=False):
        assert speculate(draft, row, sampling) == speculate((), row, sampling)


def test_chi_square_of_the_joint_of_two_tokens_with_drafts():
    """20 000 samples by the counter stream. 24 degrees of freedom: 51.2 is the 99.9th percentile; the seed is fixed."""
    count = 20_000
    asks = [
        Ask(Sampling(9), stream_key(11, i), [0], 1, draft=(int(token),))
        for i, token in zip(range(count), itertools.cycle(range(5)), strict=False)
    ]
    logits = rows_after([token for ask in asks for token in (0, *ask.draft)])
    drawn = verify(logits, asks)
    open_asks = [
        Ask(Sampling(9), ask.key, [0, *one.tokens], 1)
        for ask, one in zip(asks, drawn, strict=True)
        if len(one.tokens) == 1
    ]
    later = iter(verify(rows_after([ask.tokens[-1] for ask in open_asks]), open_asks))
    found = Counter(
        tuple(one.tokens) if len(one.tokens) == 2 else (one.tokens[0], next(later).tokens[0]) for one in drawn
    )
    statistic = 0.0
    for first, second in itertools.product(range(5), repeat=2):
        expected = count * int(CHAIN[0, first]) * int(CHAIN[first, second]) / 256
        if expected == 0:
            assert found[first, second] == 0
        else:
            statistic += (found[first, second] - expected) ** 2 / expected
    assert statistic < 51.2


def test_inverting_never_picks_what_has_no_mass():
    probability = torch.tensor([[0.0, 0.5, 0.0, 0.5, 0.0]]).expand(4, -1)
    uniform = torch.tensor([0.0, 0.4999, 0.5, 0.9999], dtype=torch.float64)
    assert invert(probability, uniform)[:, 0].tolist() == [1, 1, 3, 3]
