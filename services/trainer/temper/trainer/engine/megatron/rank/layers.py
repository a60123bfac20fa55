"""The parts of a layer that are ours: norms, and attention over packed rows whose columns may be spread over processes.

Megatron's own attention without Transformer Engine keeps all scores and cannot share a sequence, and its norm cannot either. These two can:
attention takes any mask, gathers keys and values of all processes that share a sequence (*context parallel*: every process holds some
columns), and leaves the product to torch, which keeps no scores.
"""

from __future__ import annotations

from typing import Any

import torch
from megatron.core import parallel_state
from megatron.core.models.gpt.gpt_layer_specs import get_gpt_layer_local_spec
from megatron.core.tensor_parallel.mappings import gather_from_sequence_parallel_region
from megatron.core.transformer import TransformerConfig
from megatron.core.transformer.transformer_block import TransformerBlockSubmodules
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812 - the name everybody uses


class Norm(nn.Module):
    """RMSNorm in Megatron's words. Its weight is the same on all tensor-parallel processes, its gradient is not where they share a sequence."""

    def __init__(self, config: TransformerConfig, hidden_size: int, eps: float = 1e-5, **_: Any) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(hidden_size))
        vars(self.weight)["sequence_parallel"] = config.sequence_parallel
        self.eps = eps

    def forward(self, x: Tensor) -> Tensor:
        """``x / rms(x) * weight`` over the last dimension."""
        return F.rms_norm(x, (x.shape[-1],), self.weight, self.eps)


class Attention(nn.Module):
    """Grouped-query attention of this process's columns over the columns of all."""

    def __init__(self, config: TransformerConfig, **_: Any) -> None:
        super().__init__()
        self._shared = config.context_parallel_size > 1

    def forward(self, query: Tensor, key: Tensor, value: Tensor, attention_mask: Tensor, **_: Any) -> Tensor:
        """``[col, row, heads · head_dim]`` from ``[col, row, head, head_dim]``; mask ``[row, 1, own col, col]``, True = may look."""
        if self._shared:
            group = parallel_state.get_context_parallel_group()
            both = gather_from_sequence_parallel_region(torch.cat((key, value), dim=-1), group=group)
            key, value = both.chunk(2, dim=-1)
        parts = (each.permute(1, 2, 0, 3) for each in (query, key, value))
        out = F.scaled_dot_product_attention(*parts, attn_mask=attention_mask, enable_gqa=True)
        return out.permute(2, 0, 1, 3).flatten(2)


def block(config: TransformerConfig) -> TransformerBlockSubmodules:
    """Megatron's layer with these parts, once per layer of a pipeline stage."""
    spec: Any = get_gpt_layer_local_spec(qk_layernorm=config.qk_layernorm, normalization="RMSNorm")
    layer, attention = spec.submodules, spec.submodules.self_attention.submodules
    layer.input_layernorm = layer.pre_mlp_layernorm = Norm
    attention.core_attention = Attention
    if config.qk_layernorm:
        attention.q_layernorm = attention.k_layernorm = Norm
    layers = config.num_layers // config.pipeline_model_parallel_size
    norm: Any = Norm  # a class, as Megatron's own blocks have there
    return TransformerBlockSubmodules(layer_specs=[spec] * layers, layer_norm=norm)
