"""A decoder as Megatron's GPTModel: its configuration, positions of packed rows, and hidden states instead of logits."""

from __future__ import annotations

from typing import Any

import torch
from megatron.core import parallel_state
from megatron.core.distributed.finalize_model_grads import finalize_model_grads
from megatron.core.models.gpt import GPTModel
from megatron.core.tensor_parallel.mappings import (
    copy_to_tensor_model_parallel_region,
    gather_from_sequence_parallel_region,
)
from megatron.core.transformer import TransformerConfig
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812 - the name everybody uses

from temper.trainer.engine.megatron.layout import MegatronOptions
from temper.trainer.engine.megatron.rank.layers import block
from temper.trainer.engine.torch.model import DecoderConfig


class Rotary(nn.Module):
    """Angles for the positions that the model was given, not for 0, 1, 2: packed rows begin many sequences."""

    def __init__(self, cfg: DecoderConfig) -> None:
        super().__init__()
        frequency = cfg.rope_theta ** (-torch.arange(0, cfg.head_dim, 2).float() / cfg.head_dim)
        self.register_buffer("frequency", frequency, persistent=False)
        self.positions = torch.zeros(1, 1)

    def get_rotary_seq_len(self, *_: object) -> int:
        """Megatron asks before it calls; the positions say it all."""
        return 0

    def forward(self, *_: object, **__: object) -> Tensor:
        """``[col, row, 1, head_dim]`` angles."""
        angle = self.positions.float()[..., None] * self.get_buffer("frequency").float()
        return torch.cat((angle, angle), dim=-1).transpose(0, 1)[:, :, None]


class Policy(GPTModel):
    """GPTModel for packed rows. The last stage gives hidden states ``[col, row, hidden]`` and makes logits where asked."""

    def __init__(self, cfg: DecoderConfig, options: MegatronOptions) -> None:
        config = transformer_config(cfg, options)
        layers: Any = block(config)  # as good as the one layer that Megatron's signature names
        super().__init__(
            config=config,
            transformer_layer_spec=layers,
            vocab_size=cfg.vocab_size,
            max_sequence_length=cfg.max_positions,
            pre_process=parallel_state.is_pipeline_first_stage(),
            post_process=parallel_state.is_pipeline_last_stage(),
            parallel_output=True,
            share_embeddings_and_output_weights=cfg.tied,
            position_embedding_type="rope",
            rotary_base=int(cfg.rope_theta),
        )
        self.rotary_pos_emb = Rotary(cfg)
        self.value_head = nn.Linear(cfg.hidden_size, 1) if self.post_process else None
        """Zero, and with a gradient of zero, as long as nobody asks for values."""

    def forward(  # pyright: ignore[reportIncompatibleMethodOverride] - Megatron hands on what it was given
        self, input_ids: Tensor, position_ids: Tensor, attention_mask: Tensor, **_: Any
    ) -> Tensor:
        """Ids and positions ``[row, own col]``, mask ``[row, 1, own col, col]`` with True where a token may look."""
        self.rotary_pos_emb.positions = position_ids
        return super().forward(input_ids, position_ids, attention_mask)

    def _postprocess(self, hidden_states: Tensor, *_: Any, **__: Any) -> Tensor:
        return hidden_states

    def flat(self, hidden: Tensor) -> Tensor:
        """``[row · own col, hidden]`` from what the last stage gives: ``[col, row, hidden]``, or some of these columns."""
        own = hidden.to(self.config.params_dtype)  # Megatron widens what leaves the last stage
        if self.config.sequence_parallel:
            own = gather_from_sequence_parallel_region(own, tensor_parallel_output_grad=False)
        return own.transpose(0, 1).flatten(0, 1)

    def logits(self, hidden: Tensor) -> Tensor:
        """``[n, vocab / tensor_parallel]`` from hidden states ``[n, hidden]``."""
        tied = self.share_embeddings_and_output_weights
        weight: Any = self.shared_embedding_or_output_weight() if tied else self.output_layer.weight
        return F.linear(copy_to_tensor_model_parallel_region(hidden), weight)

    def judge(self, hidden: Tensor, *, bias: bool) -> Tensor:
        """``[n]`` what the scalar head says about hidden states ``[n, hidden]``; scores have no bias, values have one."""
        head = self.value_head
        assert head is not None, "only the last stage is asked"
        return F.linear(hidden, head.weight, head.bias if bias else None)[:, 0].float()


def transformer_config(cfg: DecoderConfig, options: MegatronOptions) -> TransformerConfig:
    """Megatron's words for a model and a layout; every fusion that needs a CUDA extension is off."""
    dtype = torch.bfloat16 if options.precision == "bf16" else torch.float32
    again: dict[str, Any] = {}
    if options.recompute == "full":
        again = {"recompute_granularity": "full", "recompute_method": "uniform", "recompute_num_layers": 1}
    return TransformerConfig(
        num_layers=cfg.layers,
        hidden_size=cfg.hidden_size,
        ffn_hidden_size=cfg.intermediate_size,
        num_attention_heads=cfg.heads,
        num_query_groups=cfg.kv_heads,
        kv_channels=cfg.head_dim,
        layernorm_epsilon=cfg.norm_eps,
        normalization="RMSNorm",
        activation_func=F.silu,
        gated_linear_unit=True,
        add_bias_linear=False,
        add_qkv_bias=cfg.family == "qwen2",
        qk_layernorm=cfg.family == "qwen3",
        hidden_dropout=0.0,
        attention_dropout=0.0,
        attention_softmax_in_fp32=True,
        tensor_model_parallel_size=options.tensor_parallel,
        pipeline_model_parallel_size=options.pipeline_parallel,
        context_parallel_size=options.context_parallel,
        sequence_parallel=options.sequence_parallel,
        params_dtype=dtype,
        pipeline_dtype=dtype,
        bf16=options.precision == "bf16",
        calculate_per_token_loss=True,  # losses come as shares of the global mean: nobody divides again
        finalize_model_grads_func=finalize,
        use_cpu_initialization=True,
        perform_initialization=False,
        bias_dropout_fusion=False,
        bias_activation_fusion=False,
        masked_softmax_fusion=False,
        gradient_accumulation_fusion=False,
        persist_layer_norm=False,
        apply_rope_fusion=False,
        batch_p2p_comm=False,
        deallocate_pipeline_outputs=False,
        **again,
    )


def finalize(model: list[nn.Module], *_: Any, **__: Any) -> None:
    """Reductions after the last backward pass, without Megatron's division by a token count."""
    finalize_model_grads(model)
