"""What is simulated, and what a run of it took."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from temper.api.common.v1.common_pb2 import BlobRef, Purpose
from temper.api.job.v1 import spec_pb2 as job


@dataclass(frozen=True, slots=True)
class Workload:
    """One job and the speed of its two devices."""

    max_staleness: int = 1
    """Versions a sample may be behind; 0 is synchronous."""
    sigma: float = 0.0
    """Of the log-normal output lengths; 0 gives equal lengths."""
    steps: int = 40
    """Optimizer steps."""
    groups_per_step: int = 8
    """Groups of a step."""
    samples: int = 4
    """Samples of a group."""
    median_tokens: float = 32.0
    """Median output length."""
    longest_tokens: int = 512
    """The budget of an output."""
    token_s: float = 0.05
    """Seconds of a decode step, for all sequences in the batch together."""
    slots: int = 16
    """Sequences in the decode batch."""
    train_s: float = 10.0
    """Seconds of an optimizer step."""
    seed: int = 0
    """Of tasks, lengths and weights."""

    def spec(self, files: Mapping[str, BlobRef]) -> job.JobSpec:
        """The job; `files` are those of a tokenizer."""
        model = job.ModelSpec(
            family="qwen3",
            hidden_size=32,
            layers=2,
            heads=4,
            kv_heads=2,
            intermediate_size=48,
            max_positions=2 * self.longest_tokens,
            vocab_size=264,
            tie_embeddings=True,
            rope_theta=10_000.0,
            files=files,
        )
        phase = job.PhaseSpec(
            name="rl",
            algorithm="grpo",
            source=Purpose.PURPOSE_TRAIN,
            steps=self.steps,
            groups_per_step=self.groups_per_step,
            tasks_per_group=1,
            samples_per_task=self.samples,
            max_staleness=self.max_staleness,
            optimizer=job.OptimizerSpec(lr=1e-3),
            publish_every=1,
            snapshot_every=10,
        )
        return job.JobSpec(
            name="simulated",
            seed=self.seed,
            policy=job.PolicySpec(random=model),
            domains=[job.DomainSpec(name="sums", env="sums", share=1)],
            phases=[phase],
            eval=job.EvalSpec(temperature=1),
            rollout=job.RolloutSpec(
                max_turns=1,
                max_tokens_per_turn=self.longest_tokens,
                max_tokens=2 * self.longest_tokens,
                group_deadline_s=3600,
            ),
            trainer=job.TrainerSpec(engine="fake"),
        )


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a run took, in simulated seconds."""

    wall_s: float
    """From the first policy to the last."""
    work_s: float
    """Seconds in which the decode batch would have made all generated tokens with no slot ever empty."""
    train_s: float
    """Seconds of all optimizer steps."""
    trainer_wait: float
    """Share of the wall time in which the trainer waited for groups."""
    trainer_idle: float
    """Share of the trainer's time in which it computed no step, as the trainer itself says at the end."""
    rollout_idle: float
    """Share of the decode batch's slots that stood empty."""
    dropped: int
    """Groups that were not trained on."""
    staleness: float
    """Mean age of trained samples, in versions."""
    calls: int
    """Outputs that were calls of a tool; there are none, so such a sample earns the least."""

    @property
    def ideal_s(self) -> float:
        """No schedule is faster: the busier device never rests."""
        return max(self.work_s, self.train_s)

    def shares(self) -> dict[str, float | int]:
        """For a report's details."""
        return {
            "wall_s": round(self.wall_s, 1),
            "trainer_wait": round(self.trainer_wait, 3),
            "trainer_idle": round(self.trainer_idle, 3),
            "rollout_idle": round(self.rollout_idle, 3),
            "dropped": self.dropped,
            "staleness": round(self.staleness, 2),
            "calls": self.calls,
        }
