"""The SDK: a platform as Python objects, blocking or asyncio.

target   endpoints and token          calls    every call as a plan
types    frozen results               convert  protobuf <-> results
channel  channels and errors          sync, aio   the two clients

with connect(data_dir=".temper") as client:
    for update in client.jobs.watch(job_id):
        print(update.payload)
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from temper.client.sdk.aio import AsyncClient
from temper.client.sdk.sync import Client
from temper.client.sdk.target import Api, Target, embedded
from temper.runtime.errors import Rejected

__all__ = ["AsyncClient", "Client", "Target", "connect", "connect_async"]


def connect(
    *,
    data_dir: str | Path | None = None,
    endpoints: Mapping[Api, str] | None = None,
    token_file: str | Path | None = None,
    tls_ca_file: str | Path | None = None,
) -> Client:
    """A blocking client of the platform in `data_dir`, or of the one at `endpoints` (`{"scheduler": "host:port"}`).

    Raises Unavailable if nothing runs in `data_dir`, Rejected if neither or both are given.
    """
    return Client(_target(data_dir, endpoints, token_file, tls_ca_file))


def connect_async(
    *,
    data_dir: str | Path | None = None,
    endpoints: Mapping[Api, str] | None = None,
    token_file: str | Path | None = None,
    tls_ca_file: str | Path | None = None,
) -> AsyncClient:
    """`connect` for asyncio."""
    return AsyncClient(_target(data_dir, endpoints, token_file, tls_ca_file))


def _target(
    data_dir: str | Path | None,
    endpoints: Mapping[Api, str] | None,
    token_file: str | Path | None,
    tls_ca_file: str | Path | None,
) -> Target:
    if (data_dir is None) == (endpoints is None):
        raise Rejected("give either data_dir or endpoints", field="endpoints")
    if data_dir is not None:
        return embedded(Path(data_dir))
    return Target(
        dict(endpoints or {}),
        Path(token_file) if token_file else None,
        Path(tls_ca_file) if tls_ca_file else None,
    )
