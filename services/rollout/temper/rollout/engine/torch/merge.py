"""Partial attention: one call on a view, and the one function that joins results.

Segments of a context, a shared prefix, a sink and a window, or the shards of a context over several machines: each part gives
its softmax-weighted values and the log of its sum of exponents, and any partition joins to the whole.
"""

from __future__ import annotations

import torch
from torch import Tensor

# The kernel behind scaled_dot_product_attention on CPU, called by name because only it returns the log-sum-exp.
_flash = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu.default  # noqa: SLF001 - see above


def attend(
    q: Tensor, k: Tensor, v: Tensor, bias: Tensor | None, scale: float, *, causal: bool = False
) -> tuple[Tensor, Tensor]:
    """Attention and its log-sum-exp, fp32: q ``[n, heads, queries, d]``, k and v ``[n, kv_heads, keys, d]`` of any stride.

    ``bias`` is additive and broadcasts to ``[n, 1, queries, keys]``; a query that sees nothing has no defined result.
    """
    out, lse = _flash(q, k, v, is_causal=causal, attn_mask=bias, scale=scale)
    return out, lse


def merge(outs: Tensor, lses: Tensor, owner: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """Join parts: outs ``[parts, ..., d]``, lses ``[parts, ...]``, owner ``[parts]`` names each part's result in ``[0, count)``.

    Returns outs ``[count, ..., d]`` and lses ``[count, ...]``. Sums run in the order of the parts.
    """
    index = owner.view(-1, *(1,) * (lses.dim() - 1)).expand_as(lses)
    top = lses.new_full((count, *lses.shape[1:]), float("-inf")).scatter_reduce_(0, index, lses, "amax")
    weights = (lses - top[owner]).exp_()
    total = torch.zeros_like(top).index_add_(0, owner, weights)
    joined = outs.new_zeros(count, *outs.shape[1:]).index_add_(0, owner, outs * weights.unsqueeze(-1))
    return joined.div_(total.unsqueeze(-1)), top + total.log_()


def visible(queries: Tensor, keys: Tensor, window: int, sink: int = 0) -> Tensor:
    """Bool ``[queries, keys]`` by position: causal, and within ``window`` (0: no bound) or among the first ``sink``."""
    reach = queries[:, None] - keys
    seen = reach >= 0
    if window:
        seen &= (reach < window) | (keys < sink)
    return seen


def as_bias(seen: Tensor) -> Tensor:
    """Additive form of a mask: 0 where seen, -inf elsewhere."""
    return torch.zeros(seen.shape).masked_fill_(~seen, float("-inf"))
