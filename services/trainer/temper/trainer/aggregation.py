"""From losses per token to one number.

``T`` (action tokens) and ``S`` (sequences) are the *global* counts of the optimizer step, over all micro-batches and ranks, so
the result does not depend on how a batch was cut. Each function returns this micro-batch's share of the step's loss.
"""

from temper.trainer.tensors import Tensor

MODES = ("token_mean", "token_sum", "seq_mean_token_sum", "seq_mean_token_sum_norm", "seq_mean_token_mean")


def scale(mode: str, *, tokens: int, sequences: int, horizon: float) -> float:
    """The constant that the sum over tokens is divided by; 0 tokens give 0 and never NaN."""
    if tokens == 0:
        return 0.0
    match mode:
        case "token_sum":
            return 1.0
        case "seq_mean_token_sum" | "seq_mean_token_mean":
            return 1.0 / sequences
        case "seq_mean_token_sum_norm":
            return 1.0 / (sequences * horizon)
        case _:
            return 1.0 / tokens


def aggregate(
    mode: str,
    value: Tensor,
    sequence: Tensor,
    lengths: Tensor,
    *,
    tokens: int,
    sequences: int,
    horizon: float,
) -> Tensor:
    """Sum of ``[token]`` losses under a named mode. ``lengths`` are action tokens per local sequence."""
    if mode == "seq_mean_token_mean":
        value = value / lengths[sequence]
    return value.sum() * scale(mode, tokens=tokens, sequences=sequences, horizon=horizon)
