"""From a request body to what an engine takes."""

from __future__ import annotations

import secrets
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from temper.rollout.engine.base import Request, Sampling
from temper.rollout.serving.directory import Model
from temper.rollout.serving.errors import TooLong
from temper.rollout.serving.schema import Drawn
from temper.runtime.errors import Rejected

_MOST_OUTPUTS = 1024  # prompts times n


@dataclass(frozen=True, slots=True)
class Choice:
    """One output to be made."""

    index: int
    """Its number in the response."""
    request: Request
    """For the engine."""
    stops: tuple[str, ...]
    """Stop strings."""
    session: str | None
    """Conversation it belongs to."""
    prompt: int = 0
    """Which prompt of the request it answers."""


def choices(
    body: Drawn,
    prompts: Sequence[Sequence[int]],
    model: Model,
    *,
    field: str,
    name: str,
    limit: int,
    context: int,
    top: int,
    deadline: float,
) -> list[Choice]:
    """``n`` outputs for each prompt. Sample i of a prompt draws from stream (seed, i).

    ``limit``: most output tokens. ``context``: most tokens of prompt and output. ``field``: where prompts came from.
    """
    sampling = _sampling(body, model, limit, top)
    seed = secrets.randbits(63) if body.seed is None else body.seed
    found: list[Choice] = []
    if len(prompts) * (body.n or 1) > _MOST_OUTPUTS:
        raise Rejected(f"at most {_MOST_OUTPUTS} outputs per request", field="n")
    for number, prompt in enumerate(prompts):
        where = f"{field}[{number}]" if len(prompts) > 1 else field
        check_prompt(prompt, where, context, int(model.config["vocab_size"]))
        for sample in range(body.n or 1):
            request = Request(
                request_id=f"{name}#{len(found)}",
                tokens=tuple(prompt),
                sampling=sampling,
                seed=seed,
                sample_index=sample,
                deadline=deadline,
                group=f"{name}/{number}",
                tenant=body.user or "",
                priority=body.priority,
            )
            found.append(Choice(len(found), request, body.stops, body.trajectory, number))
    return found


def check_prompt(prompt: Sequence[int], where: str, context: int, vocabulary: int) -> None:
    """Refuse, in the words of the request, what the engine would refuse in its own."""
    if not prompt:
        raise Rejected("the prompt has no tokens; give at least one", field=where)
    if len(prompt) >= context:
        raise TooLong(
            f"the prompt has {len(prompt)} tokens, at or over the context limit of {context}",
            field=where,
            hint="shorten it",
        )
    if min(prompt) < 0 or max(prompt) >= vocabulary:
        raise Rejected(f"tokens must lie in [0, {vocabulary})", field=where)


def _sampling(body: Drawn, model: Model, limit: int, top: int) -> Sampling:
    def given(value: float | None, default: float) -> float:
        return default if value is None else value

    return Sampling(
        max_tokens=limit,
        temperature=given(body.temperature, 1.0),
        top_k=max(0, body.top_k or 0),
        top_p=given(body.top_p, 1.0),
        min_p=given(body.min_p, 0.0),
        stop_token_ids=tuple(dict.fromkeys((*model.stop_ids, *(body.stop_token_ids or ())))),
        repetition_penalty=given(body.repetition_penalty, 1.0),
        presence_penalty=given(body.presence_penalty, 0.0),
        frequency_penalty=given(body.frequency_penalty, 0.0),
        logit_bias=tuple(_bias(body.logit_bias or {}, int(model.config["vocab_size"]))),
        top_logprobs=top,
    )


def _bias(given: Mapping[str, float], vocabulary: int) -> Iterator[tuple[int, float]]:
    for text, addend in given.items():
        if not text.isascii() or not text.isdigit() or int(text) >= vocabulary:
            raise Rejected(f"{text!r} is not the id of a token below {vocabulary}", field="logit_bias")
        yield int(text), addend
