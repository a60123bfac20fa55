"""The option classes of the ``tensorrt_llm`` double: every field of the real ones that a request or a launch may carry."""

from dataclasses import dataclass, field, fields
from typing import Any

from temper.rollout.engine.base import Sampling


@dataclass(slots=True, kw_only=True)
class SamplingParams:
    """All public fields of the real one."""

    end_id: int | None = None
    pad_id: int | None = None
    max_tokens: int = 32
    bad: Any = None
    bad_token_ids: list[int] | None = None
    stop: Any = None
    stop_token_ids: list[int] | None = None
    include_stop_str_in_output: bool = False
    embedding_bias: Any = None
    logits_processor: Any = None
    apply_batched_logits_processor: bool = False
    n: int = 1
    best_of: int | None = None
    use_beam_search: bool = False
    top_k: int | None = None
    top_p: float | None = None
    top_p_min: float | None = None
    top_p_reset_ids: int | None = None
    top_p_decay: float | None = None
    seed: int | None = None
    temperature: float | None = None
    min_tokens: int | None = None
    beam_search_diversity_rate: float | None = None
    repetition_penalty: float | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    length_penalty: float | None = None
    early_stopping: int | None = None
    no_repeat_ngram_size: int | None = None
    min_p: float | None = None
    beam_width_array: list[int] | None = None
    logprobs: int | None = None
    prompt_logprobs: int | None = None
    return_context_logits: bool = False
    return_generation_logits: bool = False
    exclude_input_from_output: bool = True
    return_encoder_output: bool = False
    return_perf_metrics: bool = False
    additional_model_outputs: list[str] | None = None
    lookahead_config: Any = None
    guided_decoding: Any = None
    ignore_eos: bool = False
    detokenize: bool = True
    add_special_tokens: bool = True
    truncate_prompt_tokens: int | None = None
    skip_special_tokens: bool = True
    spaces_between_special_tokens: bool = True

    def __post_init__(self) -> None:
        if self.top_p is not None and not 0 <= self.top_p <= 1:
            raise ValueError("require 0 <= top_p <= 1")
        if self.top_k is not None and self.top_k < 0:
            raise ValueError("require top_k >= 0")
        if self.temperature is not None and self.temperature < 0:
            raise ValueError("require temperature >= 0")
        used = {each.name for each in fields(self) if getattr(self, each.name) != each.default}
        unknown = used & {
            "repetition_penalty",
            "presence_penalty",
            "frequency_penalty",
            "embedding_bias",
            "n",
        }
        assert not unknown, f"the engine must not use {unknown}"

    def as_sampling(self) -> Sampling:
        """What the real one makes of its fields: greedy when none of three is given."""
        unset = self.temperature is None and self.top_p is None and self.top_k is None
        if unset or self.top_k == 1 or self.top_p == 0.0 or self.temperature == 0:
            return Sampling(1, 0.0)
        temperature = 1.0 if self.temperature is None else self.temperature
        top_p = 1.0 if self.top_p is None else self.top_p
        return Sampling(1, temperature, self.top_k or 0, top_p, self.min_p or 0.0)


@dataclass(slots=True, kw_only=True)
class KvCacheConfig:
    """The fields of the real one."""

    enable_block_reuse: bool = True
    max_tokens: int | None = None
    max_attention_window: list[int] | None = None
    sink_token_length: int | None = None
    free_gpu_memory_fraction: float | None = 0.9
    host_cache_size: int | None = None
    onboard_blocks: bool = True
    cross_kv_cache_fraction: float | None = None
    secondary_offload_min_priority: int | None = None
    event_buffer_max_size: int = 0
    enable_partial_reuse: bool = True
    copy_on_partial_reuse: bool = True
    use_uvm: bool = False
    dtype: str = "auto"
    tokens_per_block: int = 32

    def __post_init__(self) -> None:
        assert self.free_gpu_memory_fraction is not None
        if not 0 <= self.free_gpu_memory_fraction <= 1:
            raise ValueError("kv_cache_config.free_gpu_memory_fraction must be a float between 0 and 1")


@dataclass(slots=True, kw_only=True)
class TorchLlmArgs:
    """The fields of the real one that matter here."""

    model: str
    tokenizer: Any = None
    tokenizer_mode: str = "auto"
    skip_tokenizer_init: bool = False
    trust_remote_code: bool = False
    tensor_parallel_size: int = 1
    dtype: str = "auto"
    revision: str | None = None
    pipeline_parallel_size: int = 1
    load_format: Any = 0
    max_batch_size: int | None = None
    max_input_len: Any = 1024
    max_seq_len: Any = None
    max_num_tokens: int | None = 8192
    enable_chunked_prefill: bool = False
    kv_cache_config: KvCacheConfig = field(default_factory=KvCacheConfig)
    speculative_config: Any = None
    sampler_type: str = "auto"
    scheduler_config: Any = None
    cuda_graph_config: Any = None
    stream_interval: int = 1
    disable_overlap_scheduler: bool = False
    orchestrator_type: str | None = None
    ray_worker_extension_cls: str | None = None
    ray_placement_config: Any = None
    allreduce_strategy: str = "AUTO"
