"""From published files to weights that may serve: planned, parsed, checked, probed."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from temper.rollout.engine.base import PolicyFiles
from temper.rollout.engine.torch.architecture import read_architecture
from temper.rollout.engine.torch.arena import Row
from temper.rollout.engine.torch.feed import Feed
from temper.rollout.engine.torch.kv import Cache
from temper.rollout.engine.torch.memory import Budget
from temper.rollout.engine.torch.model import Model
from temper.rollout.engine.torch.quant import quantise
from temper.rollout.engine.torch.sizes import size_for
from temper.rollout.engine.torch.weights import Weights, read_weights
from temper.runtime.errors import Rejected


def stage(
    files: PolicyFiles,
    model: Model | None,
    held: Sequence[Weights],
    budget: Budget,
    threads: int,
    *,
    batch_invariant: bool,
    quantised: bool = False,
) -> tuple[Model, Weights]:
    """Weights of a version, and the model of its architecture. Raises ``Rejected``; runs beside the step thread."""
    with torch.inference_mode():
        torch.set_num_threads(threads)
        shape = read_architecture(files.config)
        if model is not None and shape != model.shape:
            raise Rejected(
                f"config.json of version {files.version} describes another architecture than the loaded one"
            )
        budget.check(shape, files.version, len(held))
        model = model or Model(shape, batch_invariant=batch_invariant)
        weights = read_weights(shape, files.shards, files.version)
        if quantised:
            weights = quantise(weights)
        _probe(model, weights)
        return model, weights


def _probe(model: Model, weights: Weights) -> None:
    """A forward on a few tokens: what is not finite now would poison every sample later."""
    tokens = list(range(min(8, model.shape.vocab, model.shape.max_context)))
    feed = Feed(tokens, 0, [Row(size_for(len(tokens)), start=0)], 1, decode=False)
    logits = model.forward(weights, Cache(model.shape, 1).tensor, [feed])
    if not bool(torch.isfinite(logits).all()):
        raise Rejected(
            f"weights of version {weights.version}: the probe forward gives numbers that are not finite"
        )
