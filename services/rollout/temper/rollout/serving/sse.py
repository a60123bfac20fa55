"""Server-sent events, and what happens when the client goes away: the work for it ends."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator, Coroutine, Mapping, Sequence
from typing import Any, TypeVar

from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from temper.rollout.serving.errors import describe
from temper.runtime.errors import TemperError

T = TypeVar("T")
Chunks = AsyncGenerator[Mapping[str, Any], None]

_READ_S = 60.0
_HEADERS = [
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"cache-control", b"no-cache"),
    (b"x-accel-buffering", b"no"),  # a proxy that collects a stream defeats it
]


class ClientGone(Exception):  # noqa: N818 - an event, no error: it never reaches anybody
    """The client closed the connection before it had its answer."""


async def unless_gone(request: Request, work: Coroutine[Any, Any, T]) -> T:
    """Do the work while the client is there; cancel it and raise :class:`ClientGone` when it leaves."""
    doing = asyncio.ensure_future(work)
    leaving = asyncio.ensure_future(_gone(request.receive))
    try:
        await asyncio.wait({doing, leaving}, return_when=asyncio.FIRST_COMPLETED)
        if not doing.done():
            raise ClientGone
        return await doing
    finally:
        await _end(doing, leaving)


class EventStream(Response):
    """Chunks as events, ended with ``[DONE]``. The generator is closed however the stream ends."""

    def __init__(self, chunks: Chunks) -> None:
        super().__init__()
        self._chunks = chunks

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        pumping = asyncio.ensure_future(self._pump(send))
        leaving = asyncio.ensure_future(_gone(receive))
        try:
            await asyncio.wait({pumping, leaving}, return_when=asyncio.FIRST_COMPLETED)
            if pumping.done():
                await pumping
        finally:
            await _end(pumping, leaving)
            await self._chunks.aclose()

    async def _pump(self, send: Send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": _HEADERS})
        try:
            async for chunk in self._chunks:
                await _send(send, json.dumps(chunk, ensure_ascii=False, separators=(",", ":")))
        except TemperError as error:
            await _send(send, json.dumps(describe(error)))
        else:
            await _send(send, "[DONE]")
        await send({"type": "http.response.body", "body": b"", "more_body": False})


async def primed(chunks: Chunks) -> Chunks:
    """The same chunks after the first has come: what is refused is refused with a status, not inside a stream."""
    try:
        first = await anext(chunks)
    except BaseException:
        await chunks.aclose()
        raise
    return _after(first, chunks)


async def _after(first: Mapping[str, Any], chunks: Chunks) -> Chunks:
    try:
        yield first
        async for chunk in chunks:
            yield chunk
    finally:
        await chunks.aclose()


async def merged(sources: Sequence[AsyncGenerator[T, None]]) -> AsyncGenerator[T, None]:
    """Items of several generators as they come. The first failure ends all."""
    ready: asyncio.Queue[tuple[bool, Any]] = asyncio.Queue()

    async def drain(source: AsyncGenerator[T, None]) -> None:
        async for item in source:
            ready.put_nowait((True, item))

    tasks = [asyncio.ensure_future(drain(source)) for source in sources]
    for task in tasks:
        task.add_done_callback(lambda done: ready.put_nowait((False, done)))
    left = len(tasks)
    try:
        while left:
            is_item, item = await ready.get()
            if is_item:
                yield item
            else:
                left -= 1
                await item
    finally:
        await _end(*tasks)
        for source in sources:
            await source.aclose()


async def _gone(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


async def _send(send: Send, data: str) -> None:
    """One event. A client that does not read for a minute counts as gone: its place is somebody else's."""
    try:
        async with asyncio.timeout(_READ_S):
            await send(
                {"type": "http.response.body", "body": f"data: {data}\n\n".encode(), "more_body": True}
            )
    except TimeoutError:
        raise ClientGone from None


async def _end(*tasks: asyncio.Future[Any]) -> None:
    """Cancel what runs, wait for it, and leave no failure unasked for."""
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
