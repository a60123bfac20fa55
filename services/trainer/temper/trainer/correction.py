"""Weights that correct for the rollout engine's probabilities being not quite the trainer's: ``rho = π_old / μ``.

Every function returns ``[token]`` weights for the loss; callers pass log-ratios without gradient (``log rho`` detached).
Truncated importance sampling after Espeholt et al. (arXiv 1802.01561); masks after IcePop and the geometric and k3 rules in
use elsewhere. ``bypass`` sets ``π_old := μ``: then the policy ratio already holds the mismatch and nothing may be multiplied in.
"""

from temper.trainer.losses import ratio, sequence_log_ratio
from temper.trainer.tensors import Tensor

MODES = ("tis_token", "tis_seq", "icepop", "mask_geo", "mask_k3", "bypass", "none")


TOKEN_CAP, SEQUENCE_CAP = 2.0, 5.0


def tis_token(log_rho: Tensor, *, cap: float = TOKEN_CAP) -> Tensor:
    """``min(rho_t, C)``."""
    return ratio(log_rho).clamp(max=cap)


def tis_seq(log_rho: Tensor, sequence: Tensor, lengths: Tensor, *, cap: float = SEQUENCE_CAP) -> Tensor:
    """``min(Π_t rho_t, C)`` for every token of the sequence."""
    product = lengths.new_zeros(lengths.shape[0]).index_add(0, sequence, log_rho)
    return ratio(product).clamp(max=cap)[sequence]


def icepop(log_rho: Tensor, *, low: float = 0.5, high: float = 5.0) -> Tensor:
    """``rho_t`` inside the bounds, 0 outside."""
    rho = ratio(log_rho)
    return rho * ((rho >= low) & (rho <= high)).float()


def mask_geo(
    log_rho: Tensor, sequence: Tensor, lengths: Tensor, *, low: float = 0.99, high: float = 1.01
) -> Tensor:
    """1 where the geometric mean of rho over the sequence is inside the bounds, else 0."""
    mean = ratio(sequence_log_ratio(log_rho, sequence, lengths))
    return ((mean >= low) & (mean <= high)).float()


def mask_k3(log_rho: Tensor, sequence: Tensor, lengths: Tensor, *, bound: float = 0.01) -> Tensor:
    """1 where ``mean(rho - log rho - 1)`` over the sequence is at most the bound, else 0."""
    divergence = ratio(log_rho) - log_rho - 1.0
    total = lengths.new_zeros(lengths.shape[0]).index_add(0, sequence, divergence)
    return ((total / lengths) <= bound).float()[sequence]


def weights(
    mode: str, log_rho: Tensor, sequence: Tensor, lengths: Tensor, *, cap: float | None = None
) -> Tensor | None:
    """Weights of a named mode, or None where the loss stays as it is. ``cap`` is C of the two TIS modes; None: their own."""
    match mode:
        case "tis_token":
            return tis_token(log_rho, cap=cap or TOKEN_CAP)
        case "tis_seq":
            return tis_seq(log_rho, sequence, lengths, cap=cap or SEQUENCE_CAP)
        case "icepop":
            return icepop(log_rho)
        case "mask_geo":
            return mask_geo(log_rho, sequence, lengths)
        case "mask_k3":
            return mask_k3(log_rho, sequence, lengths)
        case _:
            return None
