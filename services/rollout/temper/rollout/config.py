"""Settings of the rollout service. ``rollout.toml`` beside this service's README says the same with comments."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from temper.runtime.config import Section, ServiceConfig


class TensorRtConfig(Section):
    """Options that only ``tensorrt_llm`` has."""

    tensor_parallel: int = Field(default=1, ge=1, le=8)
    """GPUs of this machine over which each layer is cut."""
    dtype: Literal["auto", "bfloat16", "float16"] = "auto"
    """Of the weights; ``auto`` follows config.json."""
    kv_fraction: float = Field(default=0.9, gt=0, lt=1)
    """Share of the GPU memory left after the weights that the KV cache takes."""
    kv_dtype: Literal["auto", "fp8"] = "auto"
    """Of the KV cache; with ``fp8`` logprobs are marked as not for training."""
    prefix_reuse: bool = True
    """Whether KV of equal prefixes is shared."""
    logits_mb: int = Field(default=512, ge=0)
    """Most MiB of logits that a request may ship, as sampling other than greedy or plain softmax needs; 0 refuses it."""
    swap_wait_s: float = Field(default=600.0, gt=0)
    """Seconds that a weight swap or a pause waits for requests in flight."""


class EngineConfig(Section):
    """The inference engine; one instance serves one job's policy."""

    name: Literal["torch", "fake", "tensorrt_llm"] = "torch"
    """Vendor: ``torch`` on CPU, ``tensorrt_llm`` on NVIDIA GPUs, or the twin without a model."""
    slots: int = Field(default=128, ge=1, le=4096)
    """Most sequences in a decode batch."""
    max_context: int = Field(default=4096, ge=16)
    """Most tokens of a sequence; the policy's own limit applies too."""
    prefill_tokens: int = Field(default=1024, ge=16)
    """Most context tokens computed in one step, give or take a chunk of 256."""
    kv_tokens: int = Field(default=131_072, ge=768)
    """Context tokens that the KV pool holds: of running sequences, of those kept between turns, and of the prefix cache.
    A context that could not fit it alone is over the limit (torch, fake)."""
    memory_mib: int = Field(default=0, ge=0)
    """Most MiB that old and new weights and the KV pool may take together, or a policy is refused; 0 is no bound (torch)."""
    batch_invariant: bool = True
    """Whether a sample's numbers may not depend on its neighbours in any bit (torch); off is faster for few sequences."""
    threads: int = Field(default=1, ge=1)
    """Threads of one operation (torch)."""
    speculation: Literal["none", "ngram", "suffix"] = "none"
    """Drafts from a sequence's own n-grams, or from what its group has said; needs ``batch_invariant = false`` (torch)."""
    quantisation: Literal["none", "w8a8"] = "none"
    """Linear layers in int8, row by row; logprobs are marked as not for training (torch)."""
    sparse_threshold: int = Field(default=0, ge=0)
    """Decode reads a part of contexts of so many tokens or more, 0: never; logprobs are marked likewise (torch)."""
    sparse_keep: float = Field(default=0.0625, gt=0, le=1)
    """Share of the 64-token pages between sink and window that sparse decode reads (torch)."""
    step_limit_s: float = Field(default=120.0, gt=0)
    """Seconds after which a step that has not ended counts as hung: its requests fail, and the engine is replaced (torch)."""
    step_seconds: float = Field(default=0.0, ge=0.0)
    """Simulated seconds of a decode step (fake)."""
    tensorrt_llm: TensorRtConfig = TensorRtConfig()
    """Options that only ``tensorrt_llm`` has."""


class WorkerConfig(Section):
    """How much one worker takes on."""

    groups: int = Field(default=16, ge=1)
    """Groups in flight; the broker hands out no more."""
    episodes: int = Field(default=256, ge=1)
    """Episodes in flight over all groups."""
    policies: int = Field(default=2, ge=1)
    """Engines held at once; the least recently used idle one makes room."""
    version_wait_s: float = Field(default=60.0, gt=0)
    """Seconds a group waits here for the policy version it needs before it is handed back."""
    retry_delay_s: float = Field(default=1.0, ge=0)
    """Seconds before a group that failed is handed out again, times its deliveries so far."""
    publish_wait_s: float = Field(default=60.0, gt=0)
    """Seconds to keep trying to store a finished group while object storage or the log is away."""
    flush_tokens: int = Field(default=256, ge=0)
    """Generated tokens of a sample after which its turns so far are stored, for a redelivery to go on from; 0: never."""


class SandboxConfig(Section):
    """Calls to the sandbox service."""

    call_timeout_s: float = Field(default=60.0, gt=0)
    """Seconds one tool call or verification may take, queueing included."""
    host_wait_s: float = Field(default=60.0, gt=0)
    """Seconds to wait for a host when there is none."""
    lease_s: float = Field(default=60.0, gt=0)
    """Seconds a sandbox outlives the last call of its episode."""


class RolloutConfig(ServiceConfig):
    """All settings."""

    engine: EngineConfig = EngineConfig()
    """The inference engine."""
    worker: WorkerConfig = WorkerConfig()
    """Limits of one worker."""
    sandbox: SandboxConfig = SandboxConfig()
    """Calls to the sandbox service."""
