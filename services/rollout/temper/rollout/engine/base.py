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
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Protocol


class FinishReason(StrEnum):
    """Why a completion ended."""

    STOP = "stop"  # a stop token was sampled; it is the last token of the output
    LENGTH = "length"  # max_tokens, or the engine's context limit
    ABORT = "abort"  # cancelled by the caller
    DEADLINE = "deadline"  # the request's deadline passed


class SwapPolicy(StrEnum):
    """What a weight swap does to sequences that run."""

    KEEP = "keep"  # go on, KV stays; spans say which version computed what
    RECOMPUTE = "recompute"  # go on, KV of the whole sequence is computed again under the new version
    REQUEUE = "requeue"  # back to the queue with the tokens so far; admitted again under the new version
    ABORT = "abort"  # finish with reason abort and what there is
    WAIT = "wait"  # admit nothing, let what runs finish under the old version, then swap


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
    repetition_penalty: float = 1.0
    """Divides positive and multiplies negative logits of tokens already in the context; 1 is off."""
    presence_penalty: float = 0.0
    """Subtracted from the logits of tokens already in the output."""
    frequency_penalty: float = 0.0
    """Subtracted once per occurrence in the output."""
    logit_bias: tuple[tuple[int, float], ...] = ()
    """(token, addend) pairs, applied before temperature."""
    top_logprobs: int = 0
    """Report this many most likely tokens (raw logprobs) beside each output token."""


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
    attempt: int = 1
    """Counts redeliveries of one request id; echoed."""
    group: str = ""
    """Requests of one group are admitted together and share what they learn from each other's outputs (drafts)."""
    tenant: str = ""
    """Salt of the prefix cache: requests of different tenants never share KV."""
    priority: int = 0
    """Higher is admitted first and preempted last; waiting requests age towards the front."""
    prompt_logprobs: bool = False
    """Report the raw logprob of every own prompt token. Never changes the output nor, silently, what is cached."""
    speculate: bool = True
    """Whether the engine may use drafts for this request; the distribution is the same either way."""


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
    kv_origin_versions: tuple[Span, ...] = ()
    """Run-length over the output: the *oldest* version under which KV read by that token was computed."""
    top_logprobs: tuple[tuple[tuple[int, float], ...], ...] = ()
    """Per output token, (token, raw logprob) pairs, likeliest first; empty when none were asked for."""
    prompt_logprobs: tuple[float | None, ...] = ()
    """Per own prompt token, raw logprob given what precedes; None for the first token of a sequence."""
    attempt: int = 1
    """As given."""
    stopped_by: int | None = None
    """The stop token that ended it, for ``stop``."""
    drafts_accepted: int = 0
    """Output tokens that were proposed by a draft and accepted."""
    attention: str = "dense"
    """``sparse`` when any output token was computed from a part of its context only."""
    for_training: bool = True
    """False when logprobs come from a fast variant (quantised, sparse) and must not reach a trainer."""


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
class Emitted:
    """What one step added to one request: aligned arrays of equal, non-zero length (more than one with speculation)."""

    request_id: str
    """Whose."""
    tokens: tuple[int, ...]
    """Output ids."""
    logprobs_raw: tuple[float, ...]
    """As in :class:`Completion`."""
    logprobs: tuple[float, ...]
    """As in :class:`Completion`."""
    top_logprobs: tuple[tuple[tuple[int, float], ...], ...]
    """As in :class:`Completion`; empty when none were asked for."""
    version: int
    """Weight version that computed them."""


Sink = Callable[[Emitted], None]
"""Called on the event loop; must not block."""


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

        Raises ``Rejected`` when the version was not staged.
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
