"""The seam between the rollout service and an inference engine.

The service hands in token ids and gets token ids back: nothing here knows text, tools or rewards. Every engine
fills :class:`Engine`; ``tests/conformance/rollout`` holds the rules that all of them obey.

Rules that the types alone do not say:

* **Token-in/token-out.** Output arrays are aligned with ``tokens`` and have equal length.
* **A sample is its own.** Token ``t`` of a request depends on weights, context, ``(seed, sample_index, position)``
  and nothing else: not on its neighbours in the batch, not on preemption, not on a restart.
* **Swap at a step edge.** ``swap`` changes the weights between two decode steps; running sequences go on (policy
  ``keep``), their KV stays, and a new version span opens with the next token.
* **Finish once.** ``cancel`` is the same path as finishing: the future resolves with what there is so far.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Protocol


class FinishReason(StrEnum):
    """Why a completion ended."""

    STOP = "stop"  # a stop token was sampled; it is the last token of the output
    LENGTH = "length"  # max_tokens, or the engine's context limit
    ABORT = "abort"  # cancelled by the caller
    DEADLINE = "deadline"  # the request's deadline passed


@dataclass(frozen=True, slots=True)
class Sampling:
    """How the next token is drawn. The defaults are the plain softmax, which is what training wants."""

    max_tokens: int
    """Most output tokens, stop token included."""
    temperature: float = 1.0
    """Divides the logits; 0 is greedy."""
    top_k: int = 0
    """Keep the k most likely tokens; 0 keeps all."""
    top_p: float = 1.0
    """Keep the smallest set of most likely tokens whose mass reaches p, after top_k."""
    min_p: float = 0.0
    """Drop tokens less likely than min_p times the most likely one."""
    stop_token_ids: tuple[int, ...] = ()
    """Sampling any of these ends the output; the token is kept."""


@dataclass(frozen=True, slots=True)
class Request:
    """One sequence to continue.

    Example: sample 3 of a group, first turn, to be continued after a tool call::

        Request("g7-0-3-t0", (257, 258, 52, 43, 52, 262, 259), Sampling(64, stop_token_ids=(262,)), 11, 3, keep=True)
    """

    request_id: str
    """Unique among live and kept requests of the engine."""
    tokens: tuple[int, ...]
    """Prompt ids, or the ids appended to the sequence named by ``continues``. Never empty."""
    sampling: Sampling
    """How tokens are drawn, and how many."""
    seed: int
    """First part of the random stream's key."""
    sample_index: int
    """Second part: sample i of n requests with one seed draws from stream (seed, i)."""
    deadline: float | None = None
    """Absolute, in seconds of the clock given to the engine; None waits for ever."""
    continues: str | None = None
    """Id of a finished request with ``keep``: its KV is reused and it stops being kept."""
    keep: bool = False
    """Keep the sequence after it finishes, so that a later request may continue it."""


@dataclass(frozen=True, slots=True)
class Span:
    """Tokens ``[start, end)`` were computed under weights ``version``."""

    start: int
    """First token of the span, counted from the first token of the list it describes."""
    end: int
    """One past its last token."""
    version: int
    """Weight version."""


@dataclass(frozen=True, slots=True)
class Completion:
    """What came out of one request. The four output arrays have equal length."""

    request_id: str
    """As given."""
    tokens: tuple[int, ...]
    """Output ids as sampled, the stop token included."""
    logprobs_raw: tuple[float, ...]
    """Log softmax of the unscaled logits at the sampled token."""
    logprobs: tuple[float, ...]
    """Log probability under the distribution that was sampled from: after temperature and truncation."""
    log_surviving_mass: tuple[float, ...]
    """Log of the mass that truncation left standing: ``logprobs = log p at temperature - this``."""
    weight_versions: tuple[Span, ...]
    """Run-length versions over the output; contiguous, neighbours differ; empty for an empty output."""
    prefill_versions: tuple[Span, ...]
    """Run-length versions over the request's own tokens, as their KV was computed."""
    finish: FinishReason
    """Why it ended."""
    cached_tokens: int
    """Context tokens whose KV was not computed for this request: reused, or shared with its group."""


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
    policy: str
    """How they go on; always ``keep`` today."""


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

    async def swap(self, version: int) -> SwapReport:
        """Make a staged version current at the next step edge. Announcing the current version is a no-op.

        Raises ``Rejected`` when the version was not staged.
        """
        ...

    def submit(self, request: Request) -> asyncio.Future[Completion]:
        """Queue a request.

        Raises ``Rejected`` for an empty prompt, a token outside the vocabulary, a prompt at or above the context
        limit, a duplicate id, or a ``continues`` that is not kept.
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
