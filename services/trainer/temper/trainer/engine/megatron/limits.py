"""What this engine does not do, said by name: an option is refused, never ignored."""

from __future__ import annotations

from temper.runtime.errors import Rejected
from temper.trainer.engine.base import OptimizerSettings

INSTEAD = 'trainer.engine = "torch" can'


def refuse_optimizer(optimizer: OptimizerSettings) -> None:
    """Muon orthogonalises whole matrices, which no rank holds here."""
    if optimizer.muon_lr > 0:
        raise Rejected(
            "the megatron engine has AdamW only, not Muon",
            field="phase.algorithm_choices.optimizer",
            hint=INSTEAD,
        )
