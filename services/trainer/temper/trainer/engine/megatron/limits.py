"""What this engine does not do, said by name: an option is refused, never ignored."""

from __future__ import annotations

from temper.runtime.errors import Rejected
from temper.trainer.algorithms.base import Algorithm, Settings
from temper.trainer.algorithms.targets import Needs
from temper.trainer.engine.base import EngineState, OptimizerSettings
from temper.trainer.samples import Batch

INSTEAD = 'trainer.engine = "torch" can'


def refuse_phase(needs: Needs) -> None:
    """Heads beside the policy's own are the torch engine's."""
    if needs.values:
        raise Rejected(
            "the megatron engine has no value head, which this algorithm needs",
            field="phase.algorithm",
            hint=INSTEAD,
        )
    if needs.scores:
        raise Rejected("the megatron engine trains no reward model", field="phase.algorithm", hint=INSTEAD)


def refuse_step(batch: Batch, algorithm: Algorithm, settings: Settings, optimizer: OptimizerSettings) -> None:
    """Options of a step that would be without effect."""
    refuse_phase(algorithm.needs(settings))
    if optimizer.muon_lr > 0:
        raise Rejected(
            "the megatron engine has AdamW only, not Muon",
            field="phase.algorithm_choices.optimizer",
            hint=INSTEAD,
        )
    if len({batch.samples[i].domain for i in batch.trainable()}) < 2:
        return
    if settings.params.get("conflict_every", 0) > 0:
        raise Rejected(
            "the megatron engine does not compare the gradients of domains",
            field="phase.algorithm_params.conflict_every",
            hint=INSTEAD,
        )
    for name, plain in (("merge", "sum"), ("domain_loss", "pooled")):
        if settings.choices.get(name, plain) != plain:
            raise Rejected(
                f"the megatron engine pools the domains of a batch: {settings.choices[name]!r} is not possible",
                field=f"phase.algorithm_choices.{name}",
                hint=INSTEAD,
            )


def refuse_state(state: EngineState) -> None:
    """Parts of another engine's snapshot that would be lost."""
    for name in state.files:
        if name.startswith("judge.") or name == "head.safetensors":
            raise Rejected(
                f"the snapshot holds {name}, which the megatron engine cannot train", field=name, hint=INSTEAD
            )


def no_judge() -> Rejected:
    """There is never a reward model here."""
    return Rejected("the megatron engine trains no reward model", field="trainer.engine", hint=INSTEAD)
