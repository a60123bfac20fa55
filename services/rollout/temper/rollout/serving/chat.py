"""``POST /v1/chat/completions``."""

from __future__ import annotations

import secrets
import time
from collections.abc import AsyncGenerator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from temper.rollout.serving.calls import CallReader, FoundCall
from temper.rollout.serving.front import Front, require_whole
from temper.rollout.serving.gather import gathered
from temper.rollout.serving.generation import Ended, Token
from temper.rollout.serving.lane import Lane
from temper.rollout.serving.params import Choice, choices
from temper.rollout.serving.schema import ChatBody
from temper.rollout.serving.sse import Chunks, EventStream, merged, primed, unless_gone
from temper.rollout.serving.talk import Talk, read_talk
from temper.rollout.serving.usage import Usage


@dataclass(frozen=True, slots=True)
class _Said:
    """What one step adds to one choice."""

    choice: Choice
    words: str
    calls: tuple[tuple[int, FoundCall], ...]
    """With their numbers."""
    tokens: tuple[Token, ...]
    ended: Ended | None
    """Set by the last."""
    called: bool
    """Whether any call was made so far."""


@dataclass(frozen=True, slots=True)
class _Answer:
    """One response being written."""

    front: Front
    lane: Lane
    body: ChatBody
    talk: Talk
    choices: Sequence[Choice]
    head: Mapping[str, Any]

    async def whole(self) -> Response:
        parts = await gathered([self._gather(choice) for choice in self.choices])
        usage = Usage()
        found: list[dict[str, Any]] = []
        for choice, said in zip(self.choices, parts, strict=True):
            last = said[-1]
            assert last.ended is not None
            usage.add(choice, require_whole(last.ended))
            words = "".join(each.words for each in said)
            calls = [_call(call) for each in said for _, call in each.calls]
            message: dict[str, Any] = {
                "role": "assistant",
                "content": words or (None if calls else ""),
                "refusal": None,
            }
            if calls:
                message["tool_calls"] = calls
            tokens = [token for each in said for token in each.tokens]
            found.append(
                {
                    "index": choice.index,
                    "message": message,
                    "logprobs": self._logprobs(choice, tokens),
                    "finish_reason": _finish(last),
                }
            )
        return JSONResponse(
            {**self.head, "object": "chat.completion", "choices": found, "usage": usage.json()}
        )

    async def chunks(self) -> Chunks:
        head = {**self.head, "object": "chat.completion.chunk"}
        include = self.body.stream_options is not None and self.body.stream_options.include_usage
        if include:
            head["usage"] = None
        usage = Usage()
        opened: set[int] = set()
        steps = merged([self._said(choice) for choice in self.choices])
        try:
            async for said in steps:
                delta: dict[str, Any] = {}
                if said.choice.index not in opened:
                    opened.add(said.choice.index)
                    delta = {"role": "assistant", "content": "", "refusal": None}
                if said.words:
                    delta["content"] = said.words
                if said.calls:
                    delta["tool_calls"] = [{"index": number, **_call(call)} for number, call in said.calls]
                if said.ended is not None:
                    usage.add(said.choice, require_whole(said.ended))
                yield {**head, "choices": [self._chunk(said, delta)]}
        finally:
            await steps.aclose()
        if include:
            yield {**head, "choices": [], "usage": usage.json()}

    def _chunk(self, said: _Said, delta: dict[str, Any]) -> dict[str, Any]:
        return {
            "index": said.choice.index,
            "delta": delta,
            "logprobs": self._logprobs(said.choice, said.tokens) if said.tokens else None,
            "finish_reason": _finish(said) if said.ended is not None else None,
        }

    async def _gather(self, choice: Choice) -> list[_Said]:
        return [said async for said in self._said(choice)]

    async def _said(self, choice: Choice) -> AsyncGenerator[_Said, None]:
        """One choice as words and calls. A step that shows nothing is passed over."""
        reader = self.talk.reader()
        playing = self.front.play(self.lane, choice, self.talk.shown)
        try:
            async for output, item in playing:
                if isinstance(item, Ended):
                    found = reader.finish() if reader is not None else []
                    yield _said(choice, found, reader, (), item)
                    continue
                found = reader.feed(item.text) if reader is not None else [item.text]
                if reader is not None and reader.done:
                    output.end_here()
                said = _said(choice, found, reader, item.tokens, None)
                if said.words or said.calls or (said.tokens and self.body.logprobs):
                    yield said
        finally:
            await playing.aclose()

    def _logprobs(self, choice: Choice, tokens: Sequence[Token]) -> dict[str, Any] | None:
        if not self.body.logprobs:
            return None
        stops = choice.request.sampling.stop_token_ids
        return {
            "content": [self._logprob(token) for token in tokens if token.id not in stops],
            "refusal": None,
        }

    def _logprob(self, token: Token) -> dict[str, Any]:
        entries = [
            {
                "token": self.lane.model.tokens.label(number),
                "logprob": raw,
                "bytes": list(self.lane.model.tokens.of(number)),
            }
            for number, raw in ((token.id, token.raw), *token.top)
        ]
        return {**entries[0], "top_logprobs": entries[1:]}


async def chat(front: Front, request: Request) -> Response:
    """Answer a conversation."""
    body = await front.read(request, ChatBody)
    lane = front.lane(body, body.model)
    talk = read_talk(body, lane.model)
    name = f"chatcmpl-{secrets.token_hex(12)}"
    found = choices(
        body,
        [talk.prompt],
        lane.model,
        field="messages",
        name=name,
        context=lane.max_context,
        limit=body.max_completion_tokens or body.max_tokens or lane.max_context,
        top=body.top_logprobs or 0,
        deadline=front.deadline(),
    )
    head = {
        "id": name,
        "created": int(time.time()),
        "model": body.model,
        "system_fingerprint": lane.fingerprint,
    }
    answer = _Answer(front, lane, body, talk, found, head)
    if body.stream:
        return EventStream(await unless_gone(request, primed(answer.chunks())))
    return await unless_gone(request, answer.whole())


def _said(
    choice: Choice,
    found: Sequence[str | FoundCall],
    reader: CallReader | None,
    tokens: tuple[Token, ...],
    ended: Ended | None,
) -> _Said:
    words = "".join(each for each in found if isinstance(each, str))
    calls = [each for each in found if isinstance(each, FoundCall)]
    total = reader.calls if reader is not None else 0
    numbered = tuple(enumerate(calls, total - len(calls)))
    return _Said(choice, words, numbered, tokens, ended, called=total > 0)


def _finish(said: _Said) -> str:
    assert said.ended is not None
    return "tool_calls" if said.called and said.ended.ending == "stop" else said.ended.ending


def _call(call: FoundCall) -> dict[str, Any]:
    return {
        "id": f"call_{secrets.token_hex(12)}",
        "type": "function",
        "function": {"name": call.name, "arguments": call.arguments},
    }
