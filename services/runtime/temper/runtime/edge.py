"""The edge of a gRPC server: what stands between the network and every handler.

In this order, for each call: bearer token (constant time), deadline, the contract's own rules on the request
(`temper.runtime.validation`), then the handler; a `TemperError` on the way out becomes a status with `google.rpc`
details, so the caller can tell the field at fault and the way out. Health answers without a token, because a probe of
Kubernetes has none.
"""

from __future__ import annotations

import asyncio
import hmac
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractContextManager
from types import TracebackType
from typing import Any, NoReturn

import grpc
import grpc.aio
from google.protobuf.message import Message
from google.rpc import status_pb2
from prometheus_client import CollectorRegistry, Histogram

from temper.runtime.errors import STATUS_METADATA_KEY, TemperError, to_status
from temper.runtime.tracing import span
from temper.runtime.validation import as_status, violations

HEALTH_PREFIX = "/grpc.health.v1.Health/"
_MAX_STREAM_HOURS = 24
_OK = "OK"

Handler = Callable[[Any, Any], Any]


class Edge(grpc.aio.ServerInterceptor):
    """What stands between the network and every handler."""

    def __init__(
        self, token: str | None, unary_timeout_s: float, registry: CollectorRegistry | None = None
    ) -> None:
        """`token` None leaves the server open; `unary_timeout_s` bounds every unary call."""
        self._expected = f"Bearer {token}".encode() if token else None
        self._unary_timeout_s = unary_timeout_s
        self._seconds = Histogram(
            "temper_grpc_seconds",
            "Duration of gRPC calls",
            ["method", "code"],
            registry=registry or CollectorRegistry(),
            buckets=(0.005, 0.025, 0.1, 0.5, 2.5, 10, 60),
        )

    async def intercept_service(
        self,
        continuation: Callable[[grpc.HandlerCallDetails], Awaitable[Any]],
        handler_call_details: grpc.HandlerCallDetails,
    ) -> Any:
        handler: Any = await continuation(handler_call_details)
        method = str(handler_call_details.method)
        if handler is None or method.startswith(HEALTH_PREFIX):
            return handler
        metadata: dict[str, Any] = dict(handler_call_details.invocation_metadata or ())
        allowed = self._authorized(metadata.get("authorization", ""))
        return self._wrap(
            handler, _Call(method, allowed, metadata.get("traceparent"), self._unary_timeout_s, self._seconds)
        )

    def _authorized(self, given: str | bytes) -> bool:
        if self._expected is None:
            return True
        return hmac.compare_digest(given if isinstance(given, bytes) else given.encode(), self._expected)

    def _wrap(self, handler: Any, call: _Call) -> Any:
        """The same handler with the edge around it. Only the request's side differs between unary and stream."""
        serializers = {
            "request_deserializer": handler.request_deserializer,
            "response_serializer": handler.response_serializer,
        }
        if handler.unary_unary:
            return grpc.unary_unary_rpc_method_handler(call.unary(handler.unary_unary), **serializers)
        if handler.stream_unary:
            return grpc.stream_unary_rpc_method_handler(call.unary(handler.stream_unary), **serializers)
        if handler.unary_stream:
            return grpc.unary_stream_rpc_method_handler(call.stream(handler.unary_stream), **serializers)
        return grpc.stream_stream_rpc_method_handler(call.stream(handler.stream_stream), **serializers)


class _Call:
    """The edge around one method: authorization, deadline, rules, error form, duration."""

    def __init__(
        self, method: str, allowed: bool, traceparent: str | None, unary_timeout_s: float, seconds: Histogram
    ) -> None:
        self._traceparent = traceparent
        self._method = method.rpartition("/")[2]
        self._allowed = allowed
        self._unary_timeout_s = unary_timeout_s
        self._seconds = seconds

    def unary(self, inner: Handler) -> Handler:
        async def handle(request: Any, context: Any) -> Any:
            async with _Observed(self._seconds, self._method, context):
                await self._admit(context)
                remaining = context.time_remaining()
                limit = self._unary_timeout_s if remaining is None else min(remaining, self._unary_timeout_s)
                with self._span():
                    async with asyncio.timeout(limit):
                        return await inner(await _checked(request, context), context)

        return handle

    def stream(self, inner: Handler) -> Handler:
        async def handle(request: Any, context: Any) -> AsyncIterator[Any]:
            async with _Observed(self._seconds, self._method, context):
                await self._admit(context)
                remaining = context.time_remaining()
                async with asyncio.timeout(_MAX_STREAM_HOURS * 3600 if remaining is None else remaining):
                    async for reply in inner(await _checked(request, context), context):
                        yield reply

        return handle

    def _span(self) -> AbstractContextManager[None]:
        return span(self._method, traceparent=self._traceparent, kind="server")

    async def _admit(self, context: Any) -> None:
        if not self._allowed:
            await context.abort(
                grpc.StatusCode.UNAUTHENTICATED,
                "this server wants a bearer token: metadata 'authorization: Bearer …'",
            )


class _Observed:
    """Measures a call, and gives errors of our tree their form on the wire."""

    def __init__(self, seconds: Histogram, method: str, context: Any) -> None:
        self._seconds = seconds
        self._method = method
        self._context = context

    async def __aenter__(self) -> None:
        self._started = time.perf_counter()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None
    ) -> None:
        try:
            if isinstance(error, TemperError):
                await _abort(self._context, to_status(error))
            if isinstance(error, TimeoutError):
                await self._context.abort(grpc.StatusCode.DEADLINE_EXCEEDED, "the call's deadline passed")
        finally:
            code = _code(self._context, error)
            self._seconds.labels(self._method, code).observe(time.perf_counter() - self._started)


async def _checked(request: Any, context: Any) -> Any:
    """A unary request that keeps the contract's rules, or a stream whose messages are checked as they come."""
    if isinstance(request, Message):
        await _check(request, context)
        return request
    return _checked_stream(request, context)


async def _checked_stream(requests: Any, context: Any) -> AsyncIterator[Any]:
    async for request in requests:
        await _check(request, context)
        yield request


async def _check(request: Message, context: Any) -> None:
    if broken := violations(request):
        await _abort(context, as_status(broken))


async def _abort(context: Any, status: status_pb2.Status) -> NoReturn:
    """End the call with a `google.rpc.Status`, details included."""
    await context.abort(
        _STATUS_CODES[status.code], status.message, ((STATUS_METADATA_KEY, status.SerializeToString()),)
    )
    raise AssertionError("abort raises")


_STATUS_CODES: dict[int, grpc.StatusCode] = {code.value[0]: code for code in grpc.StatusCode}


def _code(context: Any, error: BaseException | None) -> str:
    """Name of the status that the call ended with."""
    if error is None:
        return _OK
    if isinstance(error, asyncio.CancelledError):
        return grpc.StatusCode.CANCELLED.name
    code = context.code()
    return _STATUS_CODES.get(getattr(code, "value", (code,))[0], grpc.StatusCode.UNKNOWN).name
