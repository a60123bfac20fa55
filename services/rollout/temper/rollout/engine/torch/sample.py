"""Drawing the next tokens of each sequence from logits, with random numbers that belong to the sample alone.

The uniform of a draw is a hash of ``(seed, sample_index, position)``: no generator state exists, so batch composition,
preemption, restarts and drafts cannot change a sample. The draw inverts the cumulative distribution.

Drafts. A sequence may be fed a guess of its next tokens; the logits then have a row after each of them. At every position
the token is drawn as if there were no draft, and the draft goes on while it guessed right. The draft's x is thus accepted
with probability p(x), and what replaces it is distributed as p with x zeroed and renormalised: the rejection rule for a
draft of one point, coupled so that the output is the very one that would come without drafts.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor

from temper.rollout.engine.base import Sampling
from temper.rollout.engine.stream import uniforms

TopLogprobs = tuple[tuple[int, float], ...]


@dataclass(slots=True)
class Ask:
    """One sequence in one step. May be kept over steps: ``tokens`` is read anew each time."""

    sampling: Sampling
    """How to draw."""
    key: int
    """Stream key of its random numbers."""
    tokens: Sequence[int]
    """The whole context; the new token gets position ``len(tokens)``."""
    output_start: int
    """Index in ``tokens`` of the first output token."""
    draft: tuple[int, ...] = ()
    """Guess of what comes next, already fed: the logits have ``len(draft) + 1`` rows."""
    plain: bool = field(init=False)
    """Whether the sampled distribution is the plain softmax."""

    def __post_init__(self) -> None:
        sampling = self.sampling
        self.plain = sampling.temperature == 1.0 and not _truncates(sampling) and not _penalises(sampling)


@dataclass(slots=True)
class Drawn:
    """What one ask gave: aligned lists, 1 to ``len(draft) + 1`` long."""

    tokens: list[int]
    """Sampled ids; all but the last are the accepted part of the draft."""
    raw: list[float]
    """Log softmax of the unscaled logits."""
    processed: list[float]
    """Log probability under the sampled distribution."""
    surviving: list[float]
    """Log of the mass truncation left."""
    top: list[TopLogprobs]
    """Likeliest tokens with raw log probabilities; empty when not asked for."""

    @property
    def accepted(self) -> int:
        """Tokens of the draft that are part of the output."""
        return len(self.tokens) - 1


def verify(logits: Tensor, asks: Sequence[Ask]) -> list[Drawn]:
    """Draw from logits ``[rows of all asks, vocab]``: row j of an ask follows ``tokens + draft[:j]``."""
    if len(asks) == len(logits):  # no drafts
        keys = [ask.key for ask in asks]
        positions = [len(ask.tokens) for ask in asks]
    else:
        keys = [ask.key for ask in asks for _ in range(len(ask.draft) + 1)]
        positions = [len(ask.tokens) + j for ask in asks for j in range(len(ask.draft) + 1)]
    return decide(logits, asks, _uniforms(keys, positions))


def decide(logits: Tensor, asks: Sequence[Ask], uniform: Tensor) -> list[Drawn]:
    """:func:`verify` with the uniforms given, float64 ``[rows]``."""
    raw = torch.log_softmax(logits, dim=-1)
    return _cut(raw, asks, _columns(logits, raw, asks, uniform))


def draw(logits: Tensor, asks: Sequence[Ask]) -> Drawn:
    """:func:`verify` for asks without drafts and without alternatives: one token each, side by side."""
    raw = torch.log_softmax(logits, dim=-1)
    return _columns(
        logits, raw, asks, _uniforms([ask.key for ask in asks], [len(ask.tokens) for ask in asks])
    )


def _uniforms(keys: list[int], positions: list[int]) -> Tensor:
    return torch.from_numpy(uniforms(np.array(keys, np.uint64), np.array(positions, np.uint64)))


def _columns(logits: Tensor, raw: Tensor, asks: Sequence[Ask], uniform: Tensor) -> Drawn:
    """What every row draws."""
    if all(ask.plain for ask in asks):
        tokens = invert(raw.exp(), uniform)
        raw_at = raw.gather(1, tokens)[:, 0].tolist()
        return Drawn(tokens[:, 0].tolist(), raw_at, raw_at, [0.0] * len(raw_at), [])
    tokens, processed, surviving = _draw_processed(logits, raw, asks, uniform)
    raw_at = raw.gather(1, tokens)[:, 0].tolist()
    return Drawn(tokens[:, 0].tolist(), raw_at, processed.tolist(), surviving.tolist(), [])


def _cut(raws: Tensor, asks: Sequence[Ask], every: Drawn) -> list[Drawn]:
    """Split the rows by ask, each cut behind the first token that differs from its draft."""
    if len(asks) == len(every.tokens) and not any(ask.sampling.top_logprobs for ask in asks):
        columns = zip(every.tokens, every.raw, every.processed, every.surviving, strict=True)
        return [Drawn([token], [raw], [processed], [left], []) for token, raw, processed, left in columns]
    drawn: list[Drawn] = []
    row = 0
    for ask in asks:
        right = 0
        while right < len(ask.draft) and every.tokens[row + right] == ask.draft[right]:
            right += 1
        rows = slice(row, row + right + 1)
        top = _top(raws[rows], ask.sampling.top_logprobs) if ask.sampling.top_logprobs else []
        drawn.append(
            Drawn(every.tokens[rows], every.raw[rows], every.processed[rows], every.surviving[rows], top)
        )
        row += len(ask.draft) + 1
    return drawn


def _top(raw: Tensor, count: int) -> list[TopLogprobs]:
    values, ids = raw.topk(min(count, raw.shape[1]), dim=-1)
    return [tuple(zip(row, at, strict=True)) for row, at in zip(ids.tolist(), values.tolist(), strict=True)]


def _draw_processed(
    logits: Tensor, raw: Tensor, asks: Sequence[Ask], uniform: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """Tokens ``[rows, 1]``, their processed log probabilities and the log surviving mass ``[rows]``.

    Every row is computed by itself, in the same way whatever its neighbours ask for.
    """
    samplings = [ask.sampling for ask in asks for _ in range(len(ask.draft) + 1)]
    logits = _penalised(logits, asks)
    scaled = torch.log_softmax(logits / _column([s.temperature or 1.0 for s in samplings]), dim=-1)
    plain = torch.tensor([ask.plain for ask in asks for _ in range(len(ask.draft) + 1)])
    scaled[plain] = raw[plain]  # the same number in every bit as in a batch of plain rows
    probability = scaled.exp()
    surviving = torch.zeros(len(scaled))
    cut = [row for row, sampling in enumerate(samplings) if _truncates(sampling) and sampling.temperature]
    if cut:
        support = _support(scaled[cut], [samplings[row] for row in cut])
        left = probability[cut].masked_fill_(~support, 0.0)
        probability[cut] = left
        mass = left.sum(dim=-1, dtype=torch.float64).log().to(torch.float32)
        surviving[cut] = mass.masked_fill_(support.all(dim=-1), 0.0)
    tokens = invert(probability, uniform)
    processed = scaled.gather(1, tokens)[:, 0] - surviving
    greedy = torch.tensor([sampling.temperature == 0 for sampling in samplings])
    tokens[greedy] = logits[greedy].argmax(dim=-1, keepdim=True)
    processed[greedy] = 0.0  # the limit of a vanishing temperature: all mass on one token
    return tokens, processed, surviving


def _penalised(logits: Tensor, asks: Sequence[Ask]) -> Tensor:
    """Logits after penalties and biases; each row sees the draft before it as accepted."""
    if not any(_penalises(ask.sampling) for ask in asks):
        return logits
    logits = logits.clone()
    row = 0
    for ask in asks:
        if _penalises(ask.sampling):
            for accepted in range(len(ask.draft) + 1):
                _penalise(logits[row + accepted], ask, ask.draft[:accepted])
        row += len(ask.draft) + 1
    return logits


def _penalise(logits: Tensor, ask: Ask, accepted: tuple[int, ...]) -> None:
    """In place, ``[vocab]``. Repetition: arXiv 1909.05858, over the context; the others: OpenAI's, over the output."""
    sampling = ask.sampling
    if sampling.repetition_penalty != 1.0:
        seen = torch.tensor([*ask.tokens, *accepted]).unique()
        at = logits[seen]
        penalty = sampling.repetition_penalty
        logits[seen] = torch.where(at > 0, at / penalty, at * penalty)
    if sampling.presence_penalty or sampling.frequency_penalty:
        output = torch.tensor([*ask.tokens[ask.output_start :], *accepted], dtype=torch.long)
        ids, counts = output.unique(return_counts=True)
        logits[ids] -= sampling.frequency_penalty * counts + sampling.presence_penalty
    if sampling.logit_bias:
        ids = torch.tensor([token for token, _ in sampling.logit_bias])
        logits.index_add_(0, ids, torch.tensor([float(addend) for _, addend in sampling.logit_bias]))


def _penalises(sampling: Sampling) -> bool:
    return bool(
        sampling.repetition_penalty != 1.0
        or sampling.presence_penalty
        or sampling.frequency_penalty
        or sampling.logit_bias
    )


def _truncates(sampling: Sampling) -> bool:
    return sampling.top_k > 0 or sampling.top_p < 1.0 or sampling.min_p > 0.0


def _support(scaled: Tensor, samplings: Sequence[Sampling]) -> Tensor:
    """Bool ``[rows, vocab]``: what top-k, then top-p, then min-p leave. The most likely token always stays."""
    rows, vocab = scaled.shape
    rank = torch.arange(vocab)
    ranked, order = scaled.exp().sort(dim=-1, descending=True, stable=True)
    top_k = _column([s.top_k or vocab for s in samplings])
    mass = ranked.double().masked_fill_(rank >= top_k, 0.0)
    before = (mass.cumsum(dim=-1) - mass) / mass.sum(dim=-1, keepdim=True)
    # 2: rounding must not cut a full support
    top_p = _column([s.top_p if s.top_p < 1.0 else 2.0 for s in samplings])
    min_p = _column([s.min_p for s in samplings])
    kept = (rank < top_k) & (before < top_p) & (ranked >= min_p * ranked[:, :1])
    return torch.zeros(rows, vocab, dtype=torch.bool).scatter_(1, order, kept)


def _column(values: Sequence[float]) -> Tensor:
    return torch.tensor(values)[:, None]


def invert(probability: Tensor, uniform: Tensor) -> Tensor:
    """First index whose cumulative mass exceeds ``uniform * total``: ``[rows, 1]``."""
    cumulative = probability.cumsum(dim=-1, dtype=torch.float64)
    target = uniform[:, None] * cumulative[:, -1:]
    return torch.searchsorted(cumulative, target, right=True).clamp_(max=probability.shape[1] - 1)
