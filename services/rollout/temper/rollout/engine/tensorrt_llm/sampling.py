"""Requests in the vendor's words, and the vendor's results in ours.

What is easy to get wrong, each with the release notes or source it comes from:

* With neither temperature nor top_k nor top_p given, the vendor is greedy: the plain softmax must say ``temperature=1``.
* A stop token is cut from the output unless ``include_stop_str_in_output``, while its logprob stays.
* ``ignore_eos`` also drops ``stop_token_ids``: an ``end_id`` that no token has (-1) ends nothing and drops nothing.
* ``logprobs=0`` is the sampled token's logprob; 1 would add the likeliest one. Both are raw.
* A seed is a stream from its start: a request that is sent again with its tokens so far needs another one.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from temper.rollout.engine.base import FinishReason, Request, Sampling
from temper.rollout.engine.drawn import Drawn, likeliest, log_softmax, support
from temper.rollout.engine.stream import mix, stream_key
from temper.runtime.errors import Rejected, Unavailable

_REASONS = {"stop": FinishReason.STOP, "length": FinishReason.LENGTH, "timeout": FinishReason.DEADLINE}


def needs_logits(sampling: Sampling) -> bool:
    """Whether processed logprobs cannot be had from raw ones: for any distribution but greedy and plain softmax."""
    if sampling.temperature == 0:
        return False
    truncated = sampling.top_k > 0 or sampling.top_p < 1 or sampling.min_p > 0
    return truncated or sampling.temperature != 1


def refuse_logits(request: Request, vocab: int, most_bytes: int) -> None:
    """The vendor ships ``[tokens, vocab]`` fp32 logits for such a request; beyond a bound it is refused."""
    size = 4 * vocab * request.sampling.max_tokens
    if needs_logits(request.sampling) and size > most_bytes:
        raise Rejected(
            f"request {request.request_id}: sampling other than greedy and temperature 1 without truncation ships "
            f"{size >> 20} MiB of logits for max_tokens {request.sampling.max_tokens}, over {most_bytes >> 20}",
            hint="lower max_tokens, or raise engine.tensorrt_llm.logits_mb",
        )


def parameters(request: Request, outputs: int, left: int) -> dict[str, Any]:
    """Arguments of the vendor's ``SamplingParams`` for the next ``left`` tokens after ``outputs`` of them."""
    sampling = request.sampling
    drawn: dict[str, Any] = (
        {"top_k": 1} if sampling.temperature == 0 else {"temperature": sampling.temperature}
    )
    if sampling.temperature != 0:
        if sampling.top_k > 0:
            drawn["top_k"] = sampling.top_k
        if sampling.top_p < 1:
            drawn["top_p"] = sampling.top_p
        if sampling.min_p > 0:
            drawn["min_p"] = sampling.min_p
    return {
        "max_tokens": left,
        "end_id": -1,
        "pad_id": 0,
        "stop_token_ids": list(sampling.stop_token_ids) or None,
        "include_stop_str_in_output": True,
        "seed": mix(stream_key(request.seed, request.sample_index) ^ outputs) >> 1,
        "logprobs": sampling.top_logprobs,
        "return_generation_logits": needs_logits(sampling),
        "detokenize": False,
        "add_special_tokens": False,
        **drawn,
    }


def drawn_tokens(sampling: Sampling, output: Any, start: int) -> list[Drawn]:
    """What a ``CompletionOutput`` holds from its token ``start`` on."""
    tokens = list(output.token_ids)
    if needs_logits(sampling):
        logits = np.asarray(output.generation_logits.float().cpu().numpy(), np.float64)
        count = min(len(tokens), len(logits))
        return [_from_logits(sampling, tokens[at], logits[at]) for at in range(start, count)]
    # An aborted request may come with one logprob less than it has tokens: what cannot be told is not output.
    count = min(len(tokens), len(output.logprobs))
    return [_from_logprobs(sampling, tokens[at], output.logprobs[at]) for at in range(start, count)]


def finish_reason(output: Any) -> FinishReason | None:
    """Why the vendor ended a request; None when it has not, or was told to."""
    reason = output.finish_reason
    if reason is None or reason == "cancelled":
        return None
    if reason not in _REASONS:
        raise Unavailable(f"tensorrt_llm: a request ended with {reason!r}, which this engine does not know")
    return _REASONS[reason]


def _from_logprobs(sampling: Sampling, token: int, entry: Any) -> Drawn:
    if token not in entry:
        raise Unavailable(f"tensorrt_llm: no logprob of the sampled token {token}; its release drops it")
    raw = float(entry[token].logprob)
    if not math.isfinite(raw):
        raise Unavailable(f"tensorrt_llm: the logprob of token {token} is {raw}")
    ranked = sorted(((int(each), float(found.logprob)) for each, found in entry.items()), key=_by_logprob)
    processed = 0.0 if sampling.temperature == 0 else raw
    return Drawn(token, raw, processed, 0.0, tuple(ranked[: sampling.top_logprobs]))


def _from_logits(sampling: Sampling, token: int, logits: np.ndarray[Any, np.dtype[np.float64]]) -> Drawn:
    raw, scaled = log_softmax(logits), log_softmax(logits / sampling.temperature)
    if not math.isfinite(raw[token]):
        raise Unavailable(f"tensorrt_llm: the logprob of token {token} is {raw[token]}")
    mass = np.exp(scaled[support(scaled, sampling)]).sum()
    surviving = math.log(mass) if _truncates(sampling) else 0.0
    top = likeliest(raw, sampling.top_logprobs)
    return Drawn(token, float(raw[token]), float(scaled[token]) - surviving, surviving, top)


def _truncates(sampling: Sampling) -> bool:
    return sampling.top_k > 0 or sampling.top_p < 1 or sampling.min_p > 0


def _by_logprob(entry: tuple[int, float]) -> tuple[float, int]:
    return -entry[1], entry[0]
