"""Token-in/token-out: ``POST /v1/generate`` and ``POST /v1/score``. Ids and every array of the wire contract, no text.

What comes out of ``/v1/generate`` with class ``training`` (the default here) may go to a trainer: it is the standard
variant's, and ``for_training`` says so.
"""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from dataclasses import asdict
from typing import Annotated, Any

from pydantic import Field
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from temper.rollout.engine.base import Completion, Sampling, Span
from temper.rollout.engine.base import Request as EngineRequest
from temper.rollout.serving.front import Front, require_whole
from temper.rollout.serving.gather import gathered
from temper.rollout.serving.generation import Ended
from temper.rollout.serving.lane import Lane
from temper.rollout.serving.params import Choice, check_prompt
from temper.rollout.serving.schema import MOST_TOP, Body, Routed, TokenId
from temper.rollout.serving.sse import Chunks, EventStream, primed, unless_gone

_MOST_SEQUENCES = 128


class SamplingBody(Body):
    """How tokens are drawn: the fields of the engine's ``Sampling``."""

    max_tokens: int = Field(ge=1)
    """Most output tokens, stop token included."""
    temperature: float = Field(default=1.0, ge=0)
    """0 is greedy."""
    top_k: int = Field(default=0, ge=0)
    """0 keeps all."""
    top_p: float = Field(default=1.0, gt=0, le=1)
    """Nucleus."""
    min_p: float = Field(default=0.0, ge=0, lt=1)
    """Relative floor."""
    stop_token_ids: list[TokenId] = Field(default=[], max_length=64)
    """Ids that end the output. Nothing else does: the model's own are not added here."""
    repetition_penalty: float = Field(default=1.0, gt=0)
    """1 is off."""
    presence_penalty: float = Field(default=0.0, ge=-2, le=2)
    """Once per token seen in the output."""
    frequency_penalty: float = Field(default=0.0, ge=-2, le=2)
    """Per occurrence in the output."""
    logit_bias: list[Annotated[tuple[TokenId, float], Field(strict=False)]] = Field(
        default=[], max_length=1024
    )
    """Pairs of token and addend."""
    top_logprobs: int = Field(default=0, ge=0, le=MOST_TOP)
    """Alternatives per token, raw."""


class GenerateBody(Routed):
    """``POST /v1/generate``."""

    tokens: list[TokenId]
    """Prompt ids."""
    sampling: SamplingBody
    """How tokens are drawn."""
    seed: int | None = Field(default=None, ge=-(1 << 63), lt=1 << 63)
    """First part of the random stream's key; left out: drawn, and reported."""
    sample_index: int = Field(default=0, ge=0)
    """Second part."""
    request_id: str | None = Field(default=None, min_length=1, max_length=128)
    """Unique among live requests; left out: made up."""
    attempt: int = Field(default=1, ge=1)
    """Counts redeliveries of the id; echoed."""
    stop: Annotated[list[Annotated[str, Field(min_length=1, max_length=256)]], Field(max_length=16)] = []
    """Texts that end the output; ids, logprobs and versions are cut with them."""
    prompt_logprobs: bool = False
    """Report the raw logprob of every prompt token."""
    group: str = Field(default="", max_length=128)
    """Requests of one group share their prompt's prefill."""
    tenant: str = Field(default="", max_length=128)
    """Tenants share no cache."""
    deadline_s: float | None = Field(default=None, gt=0)
    """Seconds it may take; the server's own limit applies too."""
    speculate: bool = True
    """Whether drafts may be used; the distribution is the same either way."""
    stream: bool = False
    """Server-sent events: ids and logprobs as they come, the whole record last."""


class ScoreBody(Routed):
    """``POST /v1/score``."""

    sequences: list[Annotated[list[TokenId], Field(min_length=1)]] = Field(
        min_length=1, max_length=_MOST_SEQUENCES
    )
    """Sequences of ids."""


async def generate(front: Front, request: Request) -> Response:
    """One output with all its arrays."""
    body = await front.read(request, GenerateBody)
    lane = front.lane(_trained(body), front.name)
    choice = Choice(0, _request(front, body), tuple(body.stop), body.trajectory or body.group or None)
    if body.stream:
        return EventStream(await unless_gone(request, primed(_stream(front, lane, choice))))
    _, ended = await unless_gone(request, front.play_out(lane, choice))
    return JSONResponse(_record(lane, choice.request, ended))


async def score(front: Front, request: Request) -> Response:
    """Raw logprobs of given sequences, each token given what precedes it; null for the first."""
    body = await front.read(request, ScoreBody)
    lane = front.lane(_trained(body), front.name)
    name = f"score-{secrets.token_hex(8)}"
    for number, tokens in enumerate(body.sequences):
        check_prompt(tokens, f"sequences[{number}]", lane.max_context, int(lane.model.config["vocab_size"]))
    wanted = [
        Choice(
            number,
            EngineRequest(
                request_id=f"{name}#{number}",
                tokens=tuple(tokens),
                sampling=Sampling(max_tokens=1, temperature=0.0),
                seed=0,
                sample_index=0,
                deadline=front.deadline(),
                prompt_logprobs=True,
            ),
            (),
            None,
        )
        for number, tokens in enumerate(body.sequences)
    ]
    parts = await unless_gone(request, gathered([front.play_out(lane, each) for each in wanted]))
    scored = [
        {
            "logprobs": list(ended.completion.prompt_logprobs),
            "weight_versions": _spans(ended.completion.prefill_versions),
            "attention": ended.completion.attention,
            "for_training": ended.completion.for_training,
        }
        for _, ended in ((deltas, require_whole(ended)) for deltas, ended in parts)
    ]
    return JSONResponse({"scores": scored, "engine": asdict(lane.engines[0].info), "version": lane.version})


def _trained(body: Routed) -> Routed:
    """Class ``training`` unless the caller says otherwise."""
    return body if body.request_class is not None else body.model_copy(update={"request_class": "training"})


def _request(front: Front, body: GenerateBody) -> EngineRequest:
    given = body.sampling.model_dump()
    given["stop_token_ids"] = tuple(given["stop_token_ids"])
    given["logit_bias"] = tuple(tuple(pair) for pair in given["logit_bias"])
    deadline = front.deadline()
    if body.deadline_s is not None:
        deadline = min(deadline, front.clock.monotonic() + body.deadline_s)
    return EngineRequest(
        request_id=body.request_id or f"gen-{secrets.token_hex(12)}",
        tokens=tuple(body.tokens),
        sampling=Sampling(**given),
        seed=secrets.randbits(63) if body.seed is None else body.seed,
        sample_index=body.sample_index,
        deadline=deadline,
        attempt=body.attempt,
        group=body.group,
        tenant=body.tenant,
        priority=body.priority,
        prompt_logprobs=body.prompt_logprobs,
        speculate=body.speculate,
    )


async def _stream(front: Front, lane: Lane, choice: Choice) -> Chunks:
    playing = front.play(lane, choice)
    try:
        async for _, item in playing:
            if isinstance(item, Ended):
                yield {"done": True, **_record(lane, choice.request, item)}
            elif item.tokens:
                yield {
                    "done": False,
                    "tokens": [token.id for token in item.tokens],
                    "logprobs_raw": [token.raw for token in item.tokens],
                }
    finally:
        await playing.aclose()


def _record(lane: Lane, request: EngineRequest, ended: Ended) -> dict[str, Any]:
    """The wire contract of one sample."""
    done: Completion = ended.completion
    sampling = asdict(request.sampling)
    return {
        "request_id": done.request_id,
        "attempt": done.attempt,
        "tokens": list(done.tokens),
        "logprobs_raw": list(done.logprobs_raw),
        "logprobs": list(done.logprobs),
        "log_surviving_mass": list(done.log_surviving_mass),
        "mask": [1] * len(done.tokens),
        "top_logprobs": [[list(pair) for pair in each] for each in done.top_logprobs],
        "prompt_logprobs": list(done.prompt_logprobs),
        "weight_versions": _spans(done.weight_versions),
        "prefill_weight_versions": _spans(done.prefill_versions),
        "kv_origin_versions": _spans(done.kv_origin_versions),
        "version": done.weight_versions[-1].version if done.weight_versions else lane.version,
        "finish_reason": ended.ending,
        "stopped_by": ended.stopped_by,
        "cached_tokens": done.cached_tokens,
        "drafts_accepted": done.drafts_accepted,
        "attention": done.attention,
        "for_training": done.for_training and lane.variant == "standard",
        "variant": lane.variant,
        "sampling": sampling,
        "seed": request.seed,
        "sample_index": request.sample_index,
        "engine": asdict(lane.engines[0].info),
    }


def _spans(spans: Sequence[Span]) -> list[dict[str, int]]:
    return [{"start": span.start, "end": span.end, "version": span.version} for span in spans]
