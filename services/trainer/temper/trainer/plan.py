"""From a job's phases to what the trainer does: algorithms with validated settings, schedules, and the ledger's view.

Everything a job can ask of the trainer is checked here, before the first step; errors name the field path.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from temper.api.common.v1.common_pb2 import PURPOSE_DEMO, PURPOSE_TRAIN, BlobRef
from temper.api.job.v1.spec_pb2 import JobSpec, ModelSpec, OptimizerSpec, PhaseSpec
from temper.runtime.errors import Rejected
from temper.trainer import algorithms
from temper.trainer.algorithms import Algorithm
from temper.trainer.algorithms.base import Settings
from temper.trainer.engine.base import OptimizerSettings, PhaseStart, Teacher
from temper.trainer.state import Phase

SCHEDULES = ("constant", "cosine", "linear")
ARCHITECTURES = {"llama": "LlamaForCausalLM", "qwen2": "Qwen2ForCausalLM", "qwen3": "Qwen3ForCausalLM"}


@dataclass(frozen=True, slots=True)
class PhasePlan:
    """One phase, ready to run."""

    path: str
    """Where the job has it, for errors: ``phases[0]``."""
    name: str
    steps: int
    algorithm: Algorithm
    settings: Settings
    ledger: Phase
    """The ledger's view of the phase."""
    publish_every: int
    """Steps between publications of new weights; 0 = only at the end of the phase."""
    snapshot_every: int
    """Steps between snapshots."""
    purpose: int
    """PURPOSE_TRAIN or PURPOSE_DEMO: records of another purpose are not this phase's."""
    optimizer: OptimizerSpec
    teacher: Mapping[str, BlobRef]
    """Files of the policy to learn from; none for most algorithms."""
    shares: Mapping[str, float]
    """Share of each domain in the job's mix, not normalised."""
    slowed: float = 1.0
    """What rollbacks have left of the learning rate."""

    def tuned(self, step: int) -> OptimizerSettings:
        """AdamW for the step ``0 .. steps-1`` of the phase."""
        spec = self.optimizer
        share = scheduled(spec, step, self.steps) * self.slowed
        muon = self.settings.choices["optimizer"] == "muon"
        return OptimizerSettings(
            lr=spec.lr * share,
            muon_lr=self.settings["muon_lr"] * share if muon else 0.0,
            beta1=spec.beta1 or 0.9,
            beta2=spec.beta2 or 0.99,
            weight_decay=spec.weight_decay,
            max_grad_norm=spec.max_grad_norm or 1.0,
        )

    @property
    def warning(self) -> str:
        """What is allowed and yet most likely a mistake; empty for nothing."""
        return self.algorithm.warning(self.settings)

    @property
    def judged(self) -> bool:
        """Whether the reward model has a say in the rewards."""
        return self.settings.params.get("rm_weight", 0.0) > 0.0

    def leaves_judge(self, phase_step: int) -> bool:
        """Whether the step that ends with this count is the phase's last and the phase has changed the reward model."""
        changed = self.algorithm.needs(self.settings).scores or self.settings.params.get("rm_refresh", 0) > 0
        return changed and phase_step >= self.steps

    def refreshes(self, phase_step: int) -> bool:
        """Whether the reward model learns from the pairs of the step ``0 .. steps-1``."""
        every = int(self.settings.params.get("rm_refresh", 0.0))
        return every > 0 and phase_step % every == every - 1

    def start(self, teacher: Teacher | None) -> PhaseStart:
        """What the engine gets ready before the first step; ``teacher`` is what ``self.teacher`` names."""
        return PhaseStart(
            needs=self.algorithm.needs(self.settings),
            teacher=teacher,
            kl_beta=self.settings.params.get("kl_beta", 0.0),
        )

    def publishes(self, phase_step: int) -> bool:
        """Whether the step that ends with this count gives a new version."""
        last = phase_step >= self.steps
        return last or (self.publish_every > 0 and phase_step % self.publish_every == 0)


def scheduled(spec: OptimizerSpec, step: int, steps: int) -> float:
    """Share of the peak learning rate: linear warm-up, then constant, cosine or linear down to ``min_lr_ratio``."""
    if step < spec.warmup_steps:
        return (step + 1) / spec.warmup_steps
    left = 1.0 - (step - spec.warmup_steps) / max(1, steps - spec.warmup_steps)
    match spec.schedule:
        case "cosine":
            return spec.min_lr_ratio + (1.0 - spec.min_lr_ratio) * 0.5 * (
                1.0 + math.cos(math.pi * (1.0 - left))
            )
        case "linear":
            return spec.min_lr_ratio + (1.0 - spec.min_lr_ratio) * left
        case _:
            return 1.0


def plan(spec: JobSpec) -> Sequence[PhasePlan]:
    """All phases of a job. Raises Rejected naming the field for anything the trainer cannot do."""
    shares = {domain.name: domain.share for domain in spec.domains}
    phases = [_phase(phase, f"phases[{number}]", shares) for number, phase in enumerate(spec.phases)]
    for number, phase in enumerate(phases):
        if spec.trainer.engine == "megatron" and phase.settings.choices["optimizer"] == "muon":
            raise Rejected(
                "the megatron engine has AdamW only: no rank holds the whole matrices that Muon makes orthogonal",
                field=f"phases[{number}].algorithm_choices.optimizer",
                hint='leave it out, or trainer.engine = "torch"',
            )
        earlier = any(each.algorithm.needs(each.settings).scores for each in phases[:number])
        if phase.judged and not earlier:
            raise Rejected(
                "no earlier phase trains a reward model",
                field=f"phases[{number}].algorithm_params.rm_weight",
                hint='put a phase with algorithm = "reward_model" before it',
            )
    return phases


def _phase(spec: PhaseSpec, path: str, shares: Mapping[str, float]) -> PhasePlan:
    chosen = algorithms.algorithm(spec.algorithm, path=path)
    settings = chosen.settings(
        dict(spec.algorithm_params), dict(spec.algorithm_choices), max_staleness=spec.max_staleness, path=path
    )
    if spec.optimizer.schedule and spec.optimizer.schedule not in SCHEDULES:
        raise Rejected(
            f"{spec.optimizer.schedule!r} is not one of {', '.join(SCHEDULES)}",
            field=f"{path}.optimizer.schedule",
        )
    if chosen.needs_reward and spec.source == PURPOSE_DEMO:
        raise Rejected(
            f"{spec.algorithm} compares samples of the policy, demonstrations have none",
            field=f"{path}.source",
            hint='use algorithm = "sft" for demonstrations',
        )
    if chosen.wants_teacher != spec.HasField("teacher"):
        raise Rejected(
            f"{spec.algorithm} {'needs a policy to learn from' if chosen.wants_teacher else 'has no teacher'}",
            field=f"{path}.teacher",
        )
    return PhasePlan(
        path=path,
        name=spec.name,
        steps=spec.steps,
        algorithm=chosen,
        settings=settings,
        ledger=Phase(
            steps=spec.steps,
            groups_per_step=spec.groups_per_step,
            max_staleness=spec.max_staleness,
            ages=spec.source == PURPOSE_TRAIN,
            refills=_refills(settings, spec.groups_per_step),
        ),
        publish_every=spec.publish_every,
        snapshot_every=spec.snapshot_every or 1,
        purpose=spec.source,
        optimizer=spec.optimizer,
        teacher=dict(spec.teacher.files),
        shares=shares,
    )


def _refills(settings: Settings, groups: int) -> int:
    """Groups without a difference that may be dropped for one step."""
    wanted = settings.params.get("dynamic_sampling", 0.0) >= 1.0
    return int(settings["refill_limit"] * groups) if wanted else 0


def model_config(spec: ModelSpec) -> Mapping[str, Any]:
    """The ``config.json`` of a randomly initialised policy. Raises Rejected for shapes that do not fit together."""
    if spec.hidden_size % spec.heads:
        raise Rejected(
            f"hidden_size {spec.hidden_size} is not a multiple of heads {spec.heads}",
            field="policy.random.heads",
        )
    if spec.heads % spec.kv_heads:
        raise Rejected(
            f"heads {spec.heads} is not a multiple of kv_heads {spec.kv_heads}",
            field="policy.random.kv_heads",
        )
    return {
        "architectures": [ARCHITECTURES[spec.family]],
        "model_type": spec.family,
        "vocab_size": spec.vocab_size,
        "hidden_size": spec.hidden_size,
        "num_hidden_layers": spec.layers,
        "num_attention_heads": spec.heads,
        "num_key_value_heads": spec.kv_heads,
        "head_dim": spec.hidden_size // spec.heads,
        "intermediate_size": spec.intermediate_size,
        "max_position_embeddings": spec.max_positions,
        "rope_theta": spec.rope_theta,
        "rms_norm_eps": 1e-6,
        "tie_word_embeddings": spec.tie_embeddings,
        "hidden_act": "silu",
        "initializer_range": 0.02,
        "attention_bias": False,
        "attention_dropout": 0.0,
        "torch_dtype": "float32",
    }
