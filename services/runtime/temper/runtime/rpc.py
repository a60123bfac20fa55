"""gRPC at both ends: a server with health and reflection, and channels that carry a token and retry what may be retried.

What the server does with each call is in `temper.runtime.edge`.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_health.v1._async import HealthServicer  # exported as `health.aio`, which stubs do not know
from grpc_reflection.v1alpha import reflection
from prometheus_client import CollectorRegistry

from temper.runtime.config import GrpcConfig, read_secret
from temper.runtime.edge import Edge
from temper.runtime.errors import Rejected, Unavailable, from_status
from temper.runtime.tracing import current_traceparent

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
