"""``POST /v1/completions``."""

from __future__ import annotations

import secrets
import time
from collections.abc import AsyncGenerator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from temper.rollout.serving.front import Front, require_whole
from temper.rollout.serving.gather import gathered
from temper.rollout.serving.generation import Delta, Ended, Token
from temper.rollout.serving.lane import Lane
from temper.rollout.serving.params import Choice, choices
from temper.rollout.serving.schema import CompletionBody
from temper.rollout.serving.sse import Chunks, EventStream, merged, primed, unless_gone
from temper.rollout.serving.usage import Usage
from temper.runtime.errors import Rejected

_DEFAULT_TOKENS = 16  # OpenAI's default of this route
_MOST_PROMPTS = 128


@dataclass(frozen=True, slots=True)
class _Answer:
    """One response being written."""

    front: Front
    lane: Lane
    body: CompletionBody
    choices: Sequence[Choice]
    head: Mapping[str, Any]

    async def whole(self) -> Response:
        parts = await gathered([self.front.play_out(self.lane, each) for each in self.choices])
        usage = Usage()
        found: list[dict[str, Any]] = []
        for choice, (deltas, ended) in zip(self.choices, parts, strict=True):
            usage.add(choice, require_whole(ended))
            tokens = [token for delta in deltas for token in delta.tokens]
            found.append(self._choice(choice, ended.text, tokens, ended.ending, offset=0))
        return JSONResponse({**self.head, "choices": found, "usage": usage.json()})

    async def chunks(self) -> Chunks:
        usage = Usage()
        include = self.body.stream_options is not None and self.body.stream_options.include_usage
        blank: dict[str, Any] = {"usage": None} if include else {}
        offsets = [0] * len(self.choices)
        steps = merged([self._steps(choice) for choice in self.choices])
        try:
            async for choice, item in steps:
                if isinstance(item, Ended):
                    require_whole(item)
                    usage.add(choice, item)
                    entry = self._choice(choice, "", [], item.ending, offset=0)
                else:
                    entry = self._choice(choice, item.text, item.tokens, None, offset=offsets[choice.index])
                    offsets[choice.index] += len(item.text)
                yield {**self.head, "choices": [entry], **blank}
        finally:
            await steps.aclose()
        if include:
            yield {**self.head, "choices": [], "usage": usage.json()}

    async def _steps(self, choice: Choice) -> AsyncGenerator[tuple[Choice, Delta | Ended], None]:
        playing = self.front.play(self.lane, choice)
        try:
            async for _, item in playing:
                yield choice, item
        finally:
            await playing.aclose()

    def _choice(
        self, choice: Choice, text: str, tokens: Sequence[Token], ending: str | None, *, offset: int
    ) -> dict[str, Any]:
        wanted = self.body.logprobs
        visible = [token for token in tokens if token.id not in choice.request.sampling.stop_token_ids]
        return {
            "index": choice.index,
            "text": text,
            "logprobs": None if wanted is None or not visible else self._logprobs(visible, wanted, offset),
            "finish_reason": ending,
        }

    def _logprobs(self, tokens: Sequence[Token], wanted: int, offset: int) -> dict[str, Any]:
        label = self.lane.model.tokens.label
        offsets: list[int] = []
        for token in tokens:
            offsets.append(offset)
            offset += len(label(token.id))
        return {
            "tokens": [label(token.id) for token in tokens],
            "token_logprobs": [token.raw for token in tokens],
            "top_logprobs": [{label(other): raw for other, raw in token.top} for token in tokens]
            if wanted
            else None,
            "text_offset": offsets,
        }


async def completions(front: Front, request: Request) -> Response:
    """Continue prompts."""
    body = await front.read(request, CompletionBody)
    lane = front.lane(body, body.model)
    prompts = _prompts(body, lane)
    name = f"cmpl-{secrets.token_hex(12)}"
    found = choices(
        body,
        prompts,
        lane.model,
        field="prompt",
        name=name,
        context=lane.max_context,
        limit=body.max_tokens or _DEFAULT_TOKENS,
        top=body.logprobs or 0,
        deadline=front.deadline(),
    )
    head = {
        "id": name,
        "object": "text_completion",
        "created": int(time.time()),
        "model": body.model,
        "system_fingerprint": lane.fingerprint,
    }
    answer = _Answer(front, lane, body, found, head)
    if body.stream:
        return EventStream(await unless_gone(request, primed(answer.chunks())))
    return await unless_gone(request, answer.whole())


def _prompts(body: CompletionBody, lane: Lane) -> list[list[int]]:
    given = body.prompt
    if isinstance(given, str):
        return [lane.model.encode(given, special=True)]
    if not given:
        raise Rejected("prompt is empty", field="prompt")
    if len(given) > _MOST_PROMPTS and not isinstance(given[0], int):
        raise Rejected(f"at most {_MOST_PROMPTS} prompts at once, got {len(given)}", field="prompt")
    ids = [each for each in given if isinstance(each, int)]
    if ids:
        return [ids]
    return [
        lane.model.encode(each, special=True) if isinstance(each, str) else list(each)
        for each in given
        if not isinstance(each, int)
    ]
