"""The seam between the rollout service and an inference engine.

The service hands in token ids and gets token ids back: nothing here knows text, tools or rewards. Every engine
fills :class:`Engine`; ``tests/conformance/rollout`` holds the rules that all of them obey.

Rules that the types alone do not say:

* **Token-in/token-out.** Output arrays are aligned with ``tokens`` and have equal length.
* **A sample is its own.** Token ``t`` of a request depends on weights, context, ``(seed, sample_index, position)``
  and nothing else: not on its neighbours in the batch, not on preemption, not on a restart.
* **Swap at a step edge.** ``swap`` changes the weights between two decode steps. What happens to running sequences is
  the caller's :class:`SwapPolicy`, echoed in the report. No block computed under one version ever serves a request that
  was admitted under another: ``keep`` is for running sequences, never for the prefix cache.
* **Streaming is a view.** A sink sees every output token exactly once, in order, before the future resolves; what it saw
  and what the completion says are equal.
* **Finish once.** ``cancel`` is the same path as finishing: the future resolves with what there is so far.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Protocol

from temper.rollout.engine.request import (
    Completion,
    Emitted,
    FinishReason,
    Request,
    Sampling,
    Sink,
    Span,
)

__all__ = [
    "Blocks",
    "Completion",
    "Emitted",
    "Engine",
    "EngineInfo",
    "FinishReason",
    "PolicyFiles",
    "Request",
    "Sampling",
    "Sink",
    "Span",
    "Stats",
    "SwapPolicy",
    "SwapReport",
]


class SwapPolicy(StrEnum):
    """What a weight swap does to sequences that run."""

    KEEP = "keep"  # go on, KV stays; spans say which version computed what
    RECOMPUTE = "recompute"  # go on, KV of the whole sequence is computed again under the new version
    REQUEUE = "requeue"  # back to the queue with the tokens so far; admitted again under the new version
    ABORT = "abort"  # finish with reason abort and what there is
    WAIT = "wait"  # admit nothing, let what runs finish under the old version, then swap


@dataclass(frozen=True, slots=True)
class PolicyFiles:
    """Weights and model config of one policy version, verified, as bytes: what :meth:`Engine.load` takes."""

    version: int
    """Weight version; grows with every publication of a job."""
    config: Mapping[str, Any]
    """``config.json`` of the Hugging Face layout."""
    shards: tuple[bytes, ...] = field(repr=False)
    """Safetensors files, each tensor in exactly one of them."""


@dataclass(frozen=True, slots=True)
class SwapReport:
    """What a swap did."""

    version: int
    """Version that is now current."""
    running: int
    """Sequences that go on across the swap."""
    policy: SwapPolicy
    """What was done with them, as asked."""
    seconds: float = 0.0
    """From the request to the first step that may run under the new version."""


@dataclass(frozen=True, slots=True)
class Blocks:
    """Book of the KV pool. ``free + evictable + held == total`` at every idle step."""

    total: int
    """Blocks of the pool."""
    free: int
    """Blocks that hold nothing."""
    evictable: int
    """Blocks that hold hashed KV nobody uses now."""
    held: int
    """Blocks that running or kept sequences use, a shared one counted once."""


@dataclass(frozen=True, slots=True)
class Stats:
    """A snapshot of an engine's counters."""

    version: int
    """Current weight version; -1 before the first swap."""
    running: int
    """Sequences in the decode batch or in prefill."""
    waiting: int
    """Requests not yet admitted."""
    kept: int
    """Finished sequences that may be continued."""
    slots: int
    """Most sequences that run at once."""
    kv_tokens: int
    """Context tokens that running and kept sequences hold in the KV cache."""
    generated_tokens: int
    """Tokens sampled since start."""
    prefill_tokens: int
    """Context tokens computed since start."""
    steps: int
    """Decode steps since start."""
    busy_seconds: float
    """Time spent in steps since start."""
    cached_prompt_tokens: int = 0
    """Context tokens served from the prefix cache or a sibling since start."""
    preemptions: int = 0
    """Sequences put back for want of KV memory since start."""
    drafts_proposed: int = 0
    """Draft tokens verified since start."""
    drafts_accepted: int = 0
    """Draft tokens accepted since start."""
    paused: bool = False
    """Whether stepping is paused."""
    blocks: Blocks | None = None
    """The KV pool; None for an engine that does not tell."""


@dataclass(frozen=True, slots=True)
class EngineInfo:
    """Identity of an engine, stored beside what it produced."""

    name: str
    """Vendor, as in the config."""
    build: str
    """Version of the vendor's code."""
    numeric: str
    """Numeric mode, e.g. ``fp32``."""
    batch_invariant: bool
    """Whether a sample's numbers are independent of its neighbours."""
    max_context: int
    """Most tokens of a sequence, prompt and output together."""


class Engine(Protocol):
    """An inference engine for one policy. Methods are called from one event loop."""

    @property
    def info(self) -> EngineInfo:
        """Identity and numeric mode."""
        ...

    @property
    def alive(self) -> bool:
        """Whether it steps; False before start, after close, and when its worker died."""
        ...

    async def start(self) -> None:
        """Start stepping. Requests wait until the first :meth:`swap`."""
        ...

    async def close(self) -> None:
        """Abort what runs and stop. Idempotent."""
        ...

    async def load(self, files: PolicyFiles) -> None:
        """Stage a version beside the current one and check it with a probe forward.

        Raises ``Rejected`` when config or tensors do not fit: the current version stays.
        """
        ...

    async def swap(self, version: int, policy: SwapPolicy = SwapPolicy.KEEP) -> SwapReport:
        """Make a staged version current at the next step edge. Announcing the current version is a no-op.

        Raises ``Rejected`` when the version was not staged, ``Unavailable`` when the engine was closed or died.
        """
        ...

    async def pause(self) -> None:
        """Stop stepping at the next step edge; requests queue up, nothing is lost. Idempotent."""
        ...

    async def resume(self) -> None:
        """Step again. Idempotent."""
        ...

    def submit(self, request: Request, sink: Sink | None = None) -> asyncio.Future[Completion]:
        """Queue a request; ``sink`` sees its tokens as they come.

        Raises ``Rejected`` for an empty prompt, a token outside the vocabulary, a prompt at or above the context
        limit, a prompt that can never fit the KV pool, a duplicate id (of the same attempt: the caller's error; of
        another: cancel the first one first), a ``continues`` that is not kept, or an option the engine cannot honour.
        """
        ...

    def cancel(self, request_id: str) -> None:
        """Finish a request with reason ``abort``. Idempotent; unknown ids are ignored."""
        ...

    def release(self, request_id: str) -> None:
        """Stop keeping a finished sequence. Idempotent; unknown ids are ignored."""
        ...

    def stats(self) -> Stats:
        """Counters as of the last step."""
        ...
