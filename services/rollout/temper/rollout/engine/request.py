"""What goes into an engine and what comes out: one request, one completion. ``base`` names all of it again."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum


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
