"""The token record of one sample while it grows, and its form in the group's table."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

from temper.api.common.v1.common_pb2 import VersionSpan
from temper.api.rollout.v1.rollout_pb2 import SampleTokens
from temper.rollout.engine.base import Completion, Span
from temper.rollout.engine.spans import Spans


class Trajectory:
    """Aligned arrays over all tokens of a sample. Append-only: what the policy saw is what is stored."""

    def __init__(self) -> None:
        self.tokens: list[int] = []
        self.mask = bytearray()
        self.turns = 0
        self._raw: list[float] = []
        self._processed: list[float] = []
        self._surviving: list[float] = []
        self._versions = Spans()
        self._action_versions: list[int] = []
        self._prompt_tokens = 0

    def __len__(self) -> int:
        return len(self.tokens)

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
        return min(self._action_versions, default=0), max(self._action_versions, default=0)

    def add_turn(self, context: Sequence[int], done: Completion) -> None:
        """What was fed before a turn, and what the policy made of it."""
        self._add_context(context, done.prefill_versions)
        self._add(
            done.tokens, 1, done.weight_versions, done.logprobs_raw, done.logprobs, done.log_surviving_mass
        )
        self._action_versions += [span.version for span in done.weight_versions]

    def add_demonstration(self, context: Sequence[int], action: Sequence[int], version: int) -> None:
        """A turn of an oracle: its tokens are actions, and no policy gave them a probability."""
        self._add_context(context, (Span(0, len(context), version),))
        zeros = [0.0] * len(action)
        self._add(action, 1, (Span(0, len(action), version),), zeros, zeros, zeros)
        self._action_versions.append(version)

    def disown(self) -> None:
        """Take the actions out of training: a demonstration that fails demonstrates nothing."""
        self.mask = bytearray(len(self.mask))

    def problem(self) -> str | None:
        """What is wrong with the arrays; None when a trainer may use them."""
        covered = self._versions.frozen()
        if (covered[-1].end if covered else 0) != len(self.tokens):
            return "version spans do not cover the tokens"
        if not all(map(math.isfinite, (*self._raw, *self._processed, *self._surviving))):
            return "a logprob is not finite"
        return None

    def table_row(self, task_index: int, sample_index: int) -> SampleTokens:
        """The wire form."""
        return SampleTokens(
            task_index=task_index,
            sample_index=sample_index,
            token_ids=self.tokens,
            mask=bytes(self.mask),
            logprob_raw=self._raw,
            logprob_processed=self._processed,
            log_surviving_mass=self._surviving,
            versions=[
                VersionSpan(start=s.start, end=s.end, version=s.version) for s in self._versions.frozen()
            ],
            prompt_tokens=self._prompt_tokens,
        )

    def _add_context(self, tokens: Sequence[int], versions: Iterable[Span]) -> None:
        zeros = [0.0] * len(tokens)
        self._add(tokens, 0, versions, zeros, zeros, zeros)
        if self.turns == 0:
            self._prompt_tokens = len(tokens)
        self.turns += 1

    def _add(
        self,
        tokens: Sequence[int],
        mask: int,
        versions: Iterable[Span],
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
