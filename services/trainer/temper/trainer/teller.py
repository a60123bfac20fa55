"""What others learn of a job's steps, in the order that makes a crash harmless: weights, policy record, step record.

The policy record is where a step becomes true: it is written by compare-and-set, so of two trainers of one job only one gets that far,
and it names the groups of its step. The step's record in the log comes after it. A trainer that dies in between is followed by one that
makes the step again from the groups the policy record names, and writes the step's record under the same id.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from temper.api.common.v1.common_pb2 import BlobRef
from temper.api.trainer.v1.trainer_pb2 import StartTraining
from temper.trainer.book import PolicyBook
from temper.trainer.diagnostics import of_step
from temper.trainer.engine.base import NamedTensor
from temper.trainer.origin import Origin
from temper.trainer.patience import Patience
from temper.trainer.plan import PhasePlan
from temper.trainer.recovery import STEPS
from temper.trainer.reports import Standing, StepFacts, Timing, policy_record, step_record
from temper.trainer.reward_models import publish_reward_model
from temper.trainer.state import Ledger
from temper.trainer.surroundings import Surroundings
from temper.trainer.weights import Publisher


@dataclass(frozen=True, slots=True)
class Told:
    """A step on its way out."""

    facts: StepFacts
    phase: PhasePlan
    announced: bool
    """Whether its policy record was written before a crash."""
    weights: Sequence[NamedTensor] | None
    """The new version; None when the step gives none."""
    judge: Sequence[NamedTensor] | None
    """The reward model, where the step leaves one."""


class Teller:
    """Tells of one job. The ledger must not commit another step while one is being told."""

    standing: Standing
    """What the policy record says beyond the ledger; set before the first ``tell``."""

    def __init__(
        self,
        around: Surroundings,
        command: StartTraining,
        book: PolicyBook,
        ledger: Ledger,
        origin: Origin,
        patience: Patience,
    ) -> None:
        self._around, self._book, self._ledger = around, book, ledger
        self._job, self._fence = command.job_id, command.fence
        self._origin, self._patience = origin, patience
        self._publisher = Publisher(around.blobs, self._job, origin.files, around.config.publication)
        self.needed: frozenset[int] = frozenset()
        """Versions whose weights must stay."""
        self.steps_token = ""
        """Position of the last own record in log topic ``steps``."""

    @property
    def announced(self) -> bool:
        """Whether the ledger's step was announced before a crash."""
        return self._book.last is not None and self._book.last.step >= self._ledger.step

    def count(self, facts: StepFacts) -> None:
        """Take note of a step that the ledger has committed, before it is told and before its snapshot."""
        self.standing.restored, self.standing.diagnostics = facts.restored, of_step(facts)
        self.standing.trained_tokens += facts.outcome.tokens
        self.standing.group_ids = [group.group_id for group in facts.groups]

    async def step(self, told: Told, timing: Timing) -> None:
        """Tell of the step that the ledger has committed. Raises Stale when another trainer is ahead."""
        if told.weights is not None:
            self.standing.manifest = await self.publish(told.weights)
        if told.judge is not None:
            self.standing.reward_model = await self._publish_judge(told.judge)
        if not told.announced:
            await self.tell()
        await self._append(told, timing)

    async def tell(self) -> None:
        """Write the policy record; never one that is behind what was announced before a crash."""
        last = self._book.last
        if last is not None and self._ledger.step < last.step:
            return
        record = policy_record(
            self._job,
            self._ledger,
            self.standing,
            now=self._around.clock.now(),
            fence=self._fence,
            trainer=self._around.instance,
        )
        await self._book.write(record)

    async def publish(self, weights: Sequence[NamedTensor]) -> BlobRef:
        """Weights and manifest of the ledger's version."""
        version, now = self._ledger.version, self._around.clock.now()
        last = self._ledger.finished  # what a job leaves behind is whole: others take it up as a checkpoint
        manifest = await self._patience(
            lambda: self._publisher.publish(version, weights, now=now, full=last), "weights"
        )
        await self._patience(lambda: self._publisher.forget(version, self.needed), "old weights")
        return manifest

    async def _publish_judge(self, tensors: Sequence[NamedTensor]) -> BlobRef:
        step, now = self._ledger.step, self._around.clock.now()
        return await self._patience(
            lambda: publish_reward_model(self._around.blobs, self._job, self._origin, step, tensors, now=now),
            "reward model",
        )

    async def _append(self, told: Told, timing: Timing) -> None:
        log, now = self._around.log, self._around.clock.now()
        record = step_record(
            self._job, told.facts, told.phase, self._ledger, timing, now=now, trainer=self._around.instance
        )
        record_id = f"{self._job}/step/{self._ledger.step}"
        token = await self._patience(
            lambda: log.append(STEPS, self._job, record, id=record_id), "step record"
        )
        self.steps_token = str(token)
