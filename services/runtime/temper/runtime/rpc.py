"""gRPC at both ends: a server whose edge checks every call, and channels that carry a token and retry what may be retried.

One interceptor is the edge of the server. In this order, for each call: bearer token (constant time), deadline, the
contract's own rules on the request (`temper.runtime.validation`), then the handler; a `TemperError` on the way out
becomes a status with `google.rpc` details, so the caller can tell the field at fault and the way out.
Health answers without a token, because a probe of Kubernetes has none.
"""

from __future__ import annotations

import asyncio
import hmac
import json
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from types import TracebackType
from typing import Any, NoReturn

import grpc
import grpc.aio
from google.protobuf.message import Message
from google.rpc import status_pb2
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_health.v1._async import HealthServicer  # exported as `health.aio`, which stubs do not know
from grpc_reflection.v1alpha import reflection
from prometheus_client import CollectorRegistry, Histogram

from temper.runtime.config import GrpcConfig, read_secret
from temper.runtime.errors import (
    STATUS_METADATA_KEY,
    Rejected,
    TemperError,
    Unavailable,
    from_status,
    to_status,
)
from temper.runtime.tracing import current_traceparent, span
from temper.runtime.validation import as_status, violations

HEALTH_PREFIX = "/grpc.health.v1.Health/"
_MAX_STREAM_HOURS = 24
_OK = "OK"

Handler = Callable[[Any, Any], Any]

RETRY_POLICY = json.dumps(
    {
        "methodConfig": [
            {
                "name": [{}],  # every method: ours are idempotent by request id or read only
                "retryPolicy": {
                    "maxAttempts": 5,
                    "initialBackoff": "0.1s",
                    "maxBackoff": "2s",
                    "backoffMultiplier": 2,
                    "retryableStatusCodes": ["UNAVAILABLE"],
                },
            }
        ]
    }
)


class GrpcServer:
    """A gRPC server with health and reflection. Add servicers, then `start`.

    Example: `grpc.add(job_pb2_grpc.add_JobServiceServicer_to_server, servicer, "temper.api.job.v1.JobService")`.
    """

    def __init__(self, config: GrpcConfig, registry: CollectorRegistry | None = None) -> None:
        self._config = config
        self._names: list[str] = []
        self.port: int | None = None
        token = read_secret(config.token_file, field="grpc.token_file")
        self._server = grpc.aio.server(
            interceptors=[Edge(token, config.unary_timeout_s, registry)],
            options=[
                ("grpc.max_receive_message_length", config.max_message_bytes),
                ("grpc.max_send_message_length", config.max_message_bytes),
                ("grpc.so_reuseport", 0),  # a second server on the port must fail, not share it
            ],
        )
        self._health = HealthServicer()
        health_pb2_grpc.add_HealthServicer_to_server(self._health, self._server)

    @property
    def address(self) -> str | None:
        """`host:port` once started; None for a server that the configuration turned off."""
        return None if self.port is None else f"{self._config.host}:{self.port}"

    def add(self, register: Callable[[Any, Any], None], servicer: object, *names: str) -> None:
        """Serve `servicer` through the generated `register` function; `names` are full service names."""
        register(servicer, self._server)
        self._names.extend(names)

    async def start(self) -> None:
        """Listen. Raises Unavailable if the port is taken; does nothing when the configuration has no port."""
        if self._config.port is None:
            return
        names = [
            *self._names,
            health_pb2.DESCRIPTOR.services_by_name["Health"].full_name,
            reflection.SERVICE_NAME,
        ]
        reflection.enable_server_reflection(names, self._server)
        self.port = self._bind(f"{self._config.host}:{self._config.port}")
        await self._server.start()

    async def set_ready(self, ready: bool) -> None:
        """What health answers, for the server and for each of its services."""
        status = (
            health_pb2.HealthCheckResponse.SERVING if ready else health_pb2.HealthCheckResponse.NOT_SERVING
        )
        for name in ("", *self._names):
            await self._health.set(name, status)

    async def stop(self, grace_s: float) -> None:
        """Take no new call; those in flight get `grace_s` seconds."""
        if self.port is not None:
            await self._server.stop(grace_s)

    def _bind(self, address: str) -> int:
        config = self._config
        try:
            if config.tls_cert_file and config.tls_key_file:
                pair = (
                    _read(config.tls_key_file, "grpc.tls_key_file"),
                    _read(config.tls_cert_file, "grpc.tls_cert_file"),
                )
                return self._server.add_secure_port(address, grpc.ssl_server_credentials([pair]))
            return self._server.add_insecure_port(address)
        except RuntimeError:
            raise Unavailable(
                f"cannot listen on {address}",
                field="grpc.port",
                hint="the port is taken; choose another, or 0",
            ) from None


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


def _read(path: Path, field: str) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise Rejected(f"cannot read {path}: {error.strerror}", field=field) from None


# ---------------------------------------------------------------- client side
def channel(
    address: str,
    *,
    token: str | None = None,
    tls_ca_file: Path | None = None,
    max_message_bytes: int = 16 << 20,
) -> grpc.aio.Channel:
    """An asyncio channel to `host:port` that sends `token` and retries UNAVAILABLE within the caller's deadline."""
    options = _channel_options(max_message_bytes)
    interceptors: Sequence[grpc.aio.ClientInterceptor] = _bearers(token) if token else ()
    if tls_ca_file is not None:
        credentials = grpc.ssl_channel_credentials(_read(tls_ca_file, "tls_ca_file"))
        return grpc.aio.secure_channel(address, credentials, options=options, interceptors=interceptors)
    return grpc.aio.insecure_channel(address, options=options, interceptors=interceptors)


@contextmanager
def rpc_errors(target: str = "") -> Iterator[None]:
    """Raise the TemperError behind a failed gRPC call in its body; `target` says who was called."""
    try:
        yield
    except grpc.RpcError as failure:
        error = from_status(failure)
        if isinstance(error, Unavailable) and target:
            raise Unavailable(f"{target}: {error.message}", field=error.field, hint=error.hint) from None
        raise error from None


def _channel_options(max_message_bytes: int) -> list[tuple[str, Any]]:
    return [
        ("grpc.enable_retries", 1),
        ("grpc.service_config", RETRY_POLICY),
        ("grpc.max_receive_message_length", max_message_bytes),
        ("grpc.max_send_message_length", max_message_bytes),
        ("grpc.keepalive_time_ms", 60_000),
        ("grpc.max_reconnect_backoff_ms", 2_000),  # a restarted service is found again within seconds
        ("grpc.enable_http_proxy", 0),  # loopback and cluster addresses never go through a proxy
    ]


def _with_token(details: grpc.aio.ClientCallDetails, token: str) -> grpc.aio.ClientCallDetails:
    metadata = grpc.aio.Metadata(*(details.metadata or ()))
    metadata.add("authorization", f"Bearer {token}")
    if traceparent := current_traceparent():
        metadata.add("traceparent", traceparent)
    return details._replace(metadata=metadata)  # type: ignore[attr-defined]  # a namedtuple, which the stubs do not say


class _Bearer:
    def __init__(self, token: str) -> None:
        self._token = token


class _UnaryUnary(_Bearer, grpc.aio.UnaryUnaryClientInterceptor):
    async def intercept_unary_unary(self, continuation: Any, client_call_details: Any, request: Any) -> Any:
        return await continuation(_with_token(client_call_details, self._token), request)


class _UnaryStream(_Bearer, grpc.aio.UnaryStreamClientInterceptor):
    async def intercept_unary_stream(self, continuation: Any, client_call_details: Any, request: Any) -> Any:
        return await continuation(_with_token(client_call_details, self._token), request)


class _StreamUnary(_Bearer, grpc.aio.StreamUnaryClientInterceptor):
    async def intercept_stream_unary(
        self, continuation: Any, client_call_details: Any, request_iterator: Any
    ) -> Any:
        return await continuation(_with_token(client_call_details, self._token), request_iterator)


class _StreamStream(_Bearer, grpc.aio.StreamStreamClientInterceptor):
    async def intercept_stream_stream(
        self, continuation: Any, client_call_details: Any, request_iterator: Any
    ) -> Any:
        return await continuation(_with_token(client_call_details, self._token), request_iterator)


def _bearers(token: str) -> Sequence[grpc.aio.ClientInterceptor]:
    """One per kind of call: grpc.aio registers an interceptor for the first kind it recognises only."""
    return (_UnaryUnary(token), _UnaryStream(token), _StreamUnary(token), _StreamStream(token))
