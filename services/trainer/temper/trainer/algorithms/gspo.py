"""GSPO: the ratio and its clipping are per sequence."""

from temper.trainer.algorithms.base import Param, Settings, TokenBatch
from temper.trainer.algorithms.policy_gradient import algorithm
from temper.trainer.losses import PolicyLoss, gspo
from temper.trainer.tensors import Tensor


def sequence_clipped(log_w: Tensor, tokens: TokenBatch, settings: Settings) -> PolicyLoss:
    """PPO clip on the geometric mean of the sequence's ratios."""
    low, high = settings["clip_low_delta"], settings["clip_high_delta"]
    return gspo(log_w, tokens.advantage, tokens.sequence, tokens.lengths, low=low, high=high)


USUAL = 0.01
"""Bounds above this are those of token-level PPO: a mean over tokens moves far less."""


def unusual(settings: Settings) -> str:
    """The usual mistake."""
    wide = [name for name in ("clip_low_delta", "clip_high_delta") if settings[name] > USUAL]
    if not wide:
        return ""
    values = ", ".join(f"{name} {settings[name]:g}" for name in wide)
    return f"{values}: gspo clips the mean ratio of a sequence, usual bounds are 3e-4 and 4e-4; these cut almost nothing"


ALGORITHM = algorithm(
    "gspo",
    "Sequence-level ratios with bounds 3e-4 / 4e-4.",
    sequence_clipped,
    params={
        "clip_low_delta": Param(3e-4, 0.0, 1.0),
        "clip_high_delta": Param(4e-4, 0.0, 100.0),
    },
    aggregation="seq_mean_token_mean",
    warns=unusual,
)
