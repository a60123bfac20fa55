"""The token record of one sample while it grows, and its form in the group's table.

All per-token arrays have one length. Three lists of version spans describe parts of it, each counted from 0 over its own part:
``weight_versions`` and ``kv_origin_versions`` over the action tokens, ``prefill_weight_versions`` over all others.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

from temper.api.common.v1 import common_pb2 as common
from temper.api.common.v1.common_pb2 import VersionSpan
from temper.api.rollout.v1.rollout_pb2 import SampleTokens, TurnEnd
from temper.rollout.engine.base import Completion, FinishReason, Span
from temper.rollout.engine.spans import Spans

FINISH = {
    FinishReason.STOP: common.FINISH_REASON_STOP,
    FinishReason.LENGTH: common.FINISH_REASON_LENGTH,
    FinishReason.ABORT: common.FINISH_REASON_ABORT,
    FinishReason.DEADLINE: common.FINISH_REASON_DEADLINE,
}

_CUT = (FinishReason.ABORT, FinishReason.DEADLINE)


class Trajectory:
    """Aligned arrays over all tokens of a sample. Append-only: what the policy saw is what is stored."""

    def __init__(self) -> None:
        self.tokens: list[int] = []
        self.mask = bytearray()
        self.ends: list[TurnEnd] = []
        self.attention = ""
        self.for_training = True
        self.resumed_tokens = 0
        self._raw: list[float] = []
        self._processed: list[float] = []
        self._surviving: list[float] = []
        self._versions = Spans()
        self._drawn = Spans()
        self._fed = Spans()
        self._origins = Spans()
        self._prompt_tokens = 0

    def __len__(self) -> int:
        return len(self.tokens)

    @property
    def turns(self) -> int:
        """Turns so far."""
        return len(self.ends)

    @property
    def action_tokens(self) -> int:
        """Tokens that the policy emitted."""
        return self.mask.count(1)

    @property
    def prompt_tokens(self) -> int:
        """Leading tokens before the first action."""
        return self._prompt_tokens

    @property
    def version_range(self) -> tuple[int, int]:
        """Oldest and newest version over action tokens; (0, 0) without any."""
        versions = [span.version for span in self._drawn.frozen()]
        return min(versions, default=0), max(versions, default=0)

    @property
    def kv_origin_lag(self) -> int:
        """Most versions that KV read by an action token was older than the weights that drew it."""
        return max(
            (
                drawn.version - origin.version
                for drawn in self._drawn.frozen()
                for origin in self._origins.frozen()
                if drawn.start < origin.end and origin.start < drawn.end
            ),
            default=0,
        )

    @property
    def cached_tokens(self) -> int:
        """Context tokens, over all turns, whose KV was not computed for this sample."""
        return sum(end.cached_tokens for end in self.ends)

    @property
    def stop_token(self) -> int | None:
        """What ended the last generation, if a stop token did."""
        return self.ends[-1].stop_token if self.ends and self.ends[-1].HasField("stop_token") else None

    def add_turn(self, context: Sequence[int], done: Completion) -> None:
        """What was fed before a turn, and what the policy made of it. A turn that never began leaves no trace."""
        computed = done.prefill_versions[-1].end if done.prefill_versions else 0
        if not done.tokens and done.finish in _CUT and computed < len(context):
            return
        self._add_context(context, done.prefill_versions)
        self.ends.append(
            TurnEnd(
                start=len(self),
                end=len(self) + len(done.tokens),
                finish_reason=FINISH[done.finish],
                stop_token=done.stopped_by,
                cached_tokens=done.cached_tokens,
                drafts_accepted=done.drafts_accepted,
                attempt=done.attempt,
            )
        )
        self._add_action(
            done.tokens, done.weight_versions, done.logprobs_raw, done.logprobs, done.log_surviving_mass
        )
        for span in done.kv_origin_versions:
            self._origins.extend(span.end - span.start, span.version)
        self.attention = "sparse" if "sparse" in (self.attention, done.attention) else done.attention
        self.for_training = self.for_training and done.for_training

    def add_demonstration(self, context: Sequence[int], action: Sequence[int], version: int) -> None:
        """A turn of an oracle: its tokens are actions, and no policy gave them a probability."""
        self._add_context(context, (Span(0, len(context), version),))
        self.ends.append(TurnEnd(start=len(self), end=len(self) + len(action)))
        zeros = [0.0] * len(action)
        self._add_action(action, (Span(0, len(action), version),), zeros, zeros, zeros)

    def add_recorded(self, row: SampleTokens) -> None:
        """The next turn of an earlier delivery's ``row``, with the logprobs and versions it had then."""
        end = row.turns[self.turns]
        acted, start = self.action_tokens, len(self)
        for mask, first, last, part in (
            (0, start, end.start, self._fed),
            (1, end.start, end.end, self._drawn),
        ):
            spans = _cut(row.versions, first, last)
            self._add(
                row.token_ids[first:last],
                mask,
                spans,
                part,
                row.logprob_raw[first:last],
                row.logprob_processed[first:last],
                row.log_surviving_mass[first:last],
            )
        for span in _cut(row.kv_origin_versions, acted, self.action_tokens):
            self._origins.extend(span.end - span.start, span.version)
        if self.turns == 0:
            self._prompt_tokens = end.start
        self.ends.append(end)
        self.attention = row.attention
        self.for_training = self.for_training and (row.for_training or not row.HasField("for_training"))
        self.resumed_tokens += end.end - end.start

    def disown(self) -> None:
        """Take the actions out of training: a demonstration that fails demonstrates nothing."""
        self.mask = bytearray(len(self.mask))
        self._drawn, self._origins, self._fed = Spans(), Spans(), self._versions

    def problem(self) -> str | None:
        """What is wrong with the arrays; None when a trainer may use them."""
        actions = self.action_tokens
        if _covered(self._versions) != len(self.tokens):
            return "version spans do not cover the tokens"
        if _covered(self._drawn) != actions or _covered(self._fed) != len(self.tokens) - actions:
            return "version spans do not cover the action tokens and the others apart"
        if _covered(self._origins) not in (0, actions):
            return "origin spans do not cover the action tokens"
        if not all(map(math.isfinite, (*self._raw, *self._processed, *self._surviving))):
            return "a logprob is not finite"
        return None

    def table_row(self, task_index: int, sample_index: int) -> SampleTokens:
        """The wire form, but for what the group knows: seed, stream, attempt."""
        return SampleTokens(
            task_index=task_index,
            sample_index=sample_index,
            token_ids=self.tokens,
            mask=bytes(self.mask),
            logprob_raw=self._raw,
            logprob_processed=self._processed,
            log_surviving_mass=self._surviving,
            versions=_written(self._versions),
            prompt_tokens=self._prompt_tokens,
            weight_versions=_written(self._drawn),
            prefill_weight_versions=_written(self._fed),
            kv_origin_versions=_written(self._origins),
            turns=self.ends,
            attention=self.attention,
            for_training=self.for_training,
        )

    def _add_context(self, tokens: Sequence[int], versions: Iterable[Span]) -> None:
        zeros = [0.0] * len(tokens)
        self._add(tokens, 0, versions, self._fed, zeros, zeros, zeros)
        if self.turns == 0:
            self._prompt_tokens = len(tokens)

    def _add_action(
        self,
        tokens: Sequence[int],
        versions: Iterable[Span],
        raw: Sequence[float],
        processed: Sequence[float],
        surviving: Sequence[float],
    ) -> None:
        self._add(tokens, 1, versions, self._drawn, raw, processed, surviving)

    def _add(
        self,
        tokens: Sequence[int],
        mask: int,
        versions: Iterable[Span],
        part: Spans,
        raw: Sequence[float],
        processed: Sequence[float],
        surviving: Sequence[float],
    ) -> None:
        self.tokens += tokens
        self.mask += bytes([mask]) * len(tokens)
        self._raw += raw
        self._processed += processed
        self._surviving += surviving
        for span in versions:
            self._versions.extend(span.end - span.start, span.version)
            part.extend(span.end - span.start, span.version)


def _covered(spans: Spans) -> int:
    frozen = spans.frozen()
    return frozen[-1].end if frozen else 0


def _written(spans: Spans) -> list[VersionSpan]:
    return [VersionSpan(start=s.start, end=s.end, version=s.version) for s in spans.frozen()]


def _cut(spans: Iterable[VersionSpan], first: int, last: int) -> list[Span]:
    """What of the spans lies in ``[first, last)``."""
    return [
        Span(max(span.start, first), min(span.end, last), span.version)
        for span in spans
        if span.start < last and first < span.end
    ]
