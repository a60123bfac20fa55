"""A decoder as Megatron's GPTModel: its configuration, positions of packed rows, and hidden states instead of logits."""

from __future__ import annotations

from typing import Any

import torch
from megatron.core import parallel_state
from megatron.core.distributed.finalize_model_grads import finalize_model_grads
from megatron.core.models.gpt import GPTModel
from megatron.core.models.gpt.gpt_layer_specs import get_gpt_layer_local_spec
from megatron.core.transformer import TransformerConfig
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812 - the name everybody uses

from temper.trainer.engine.megatron.layout import MegatronOptions
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
        super().__init__(
            config=config,
            transformer_layer_spec=get_gpt_layer_local_spec(
                qk_layernorm=config.qk_layernorm, normalization="RMSNorm"
            ),
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

    def forward(  # pyright: ignore[reportIncompatibleMethodOverride] - Megatron hands on what it was given
        self, input_ids: Tensor, position_ids: Tensor, attention_mask: Tensor, **_: Any
    ) -> Tensor:
        """Ids and positions ``[row, col]``, mask ``[row, 1, col, col]`` with True where a token may not look."""
        self.rotary_pos_emb.positions = position_ids
        return super().forward(input_ids, position_ids, attention_mask)

    def _postprocess(self, hidden_states: Tensor, *_: Any, **__: Any) -> Tensor:
        return hidden_states

    def logits(self, hidden: Tensor) -> Tensor:
        """``[n, vocab / tensor_parallel]`` from hidden states ``[n, hidden]``."""
        weight = (
            self.shared_embedding_or_output_weight() if self.share_embeddings_and_output_weights else None
        )
        own = hidden.to(self.config.params_dtype)  # Megatron widens what leaves the last stage
        found, _ = self.output_layer(own[:, None], weight=weight)
        return found[:, 0]


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
        params_dtype=dtype,
        pipeline_dtype=dtype,
        bf16=options.precision == "bf16",
        calculate_per_token_loss=True,  # losses come as shares of the global mean: nobody divides again
        finalize_model_grads_func=_finalize,
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


def _finalize(model: list[nn.Module], *_: Any, **__: Any) -> None:
    """Reductions after the last backward pass, without Megatron's division by a token count."""
    finalize_model_grads(model)
