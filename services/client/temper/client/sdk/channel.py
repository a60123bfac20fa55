"""Channels, metadata and errors of both clients."""

from __future__ import annotations

import json
from typing import Any

import grpc
import grpc.aio

from temper.client.sdk.target import Api, Target
from temper.runtime.errors import TemperError, Unavailable, from_status

_RETRIES = {
    "methodConfig": [
        {
            "name": [{}],  # every call is idempotent: by its request id, its content or its meaning
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
_OPTIONS: list[tuple[str, Any]] = [
    ("grpc.enable_retries", 1),
    ("grpc.service_config", json.dumps(_RETRIES)),
    ("grpc.max_receive_message_length", 64 << 20),  # a query may ask for 100,000 rows
    ("grpc.max_reconnect_backoff_ms", 2000),  # a restarted service is found again within seconds
    ("grpc.enable_http_proxy", 0),  # loopback and cluster addresses never go through a proxy
]


def open_sync(target: Target, api: Api) -> grpc.Channel:
    """A blocking channel to the service that serves `api`."""
    address = target.endpoint(api)
    if target.tls_ca_file is None:
        return grpc.insecure_channel(address, options=_OPTIONS)
    return grpc.secure_channel(address, _credentials(target), options=_OPTIONS)


def open_aio(target: Target, api: Api) -> grpc.aio.Channel:
    """An asyncio channel to the service that serves `api`."""
    address = target.endpoint(api)
    if target.tls_ca_file is None:
        return grpc.aio.insecure_channel(address, options=_OPTIONS)
    return grpc.aio.secure_channel(address, _credentials(target), options=_OPTIONS)


def metadata(token: str | None) -> tuple[tuple[str, str], ...]:
    """What each call carries."""
    return (("authorization", f"Bearer {token}"),) if token else ()


def translated(failure: grpc.RpcError, address: str, api: Api) -> TemperError:
    """The temper error behind a failed call, with a way out where the transport itself failed."""
    error = from_status(failure)
    code = code_of(failure)
    if code is grpc.StatusCode.UNAVAILABLE and _unreachable(error):
        return Unavailable(f"the {api} service does not answer at {address}", hint="temper doctor; temper up")
    if code is grpc.StatusCode.DEADLINE_EXCEEDED:
        return Unavailable(
            f"the {api} service at {address} did not answer in time", hint="temper service list"
        )
    if code is grpc.StatusCode.UNAUTHENTICATED:
        error.hint = error.hint or "--token-file FILE, or TEMPER_TOKEN_FILE"
    return error


def code_of(failure: grpc.RpcError) -> grpc.StatusCode | None:
    """Status code of a failed call."""
    return failure.code() if isinstance(failure, grpc.Call | grpc.aio.AioRpcError) else None


def _unreachable(error: TemperError) -> bool:
    """Whether the message is gRPC's own, not a service's."""
    return any(word in error.message.lower() for word in ("failed to connect", "connection", "socket"))


def _credentials(target: Target) -> grpc.ChannelCredentials:
    assert target.tls_ca_file is not None
    return grpc.ssl_channel_credentials(target.tls_ca_file.read_bytes())
