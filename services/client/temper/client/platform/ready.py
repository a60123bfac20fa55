"""Bounded waits: ports that are free, services that answer."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable, Mapping

import grpc
import grpc.aio
from grpc_health.v1 import health_pb2

from temper.runtime.embedded import free_port
from temper.runtime.errors import Conflict, Rejected, Unavailable

HEALTH = "/grpc.health.v1.Health/Check"
_POLL_S = 0.1
_TALK_S = 3.0  # between two lines about what is waited for


def choose_ports(names: tuple[str, ...], base: int | None) -> dict[str, int]:
    """A port for each name: consecutive from `base`, or free ones. Rejected if there are none, Conflict if one is taken."""
    if base is None:
        ports: dict[str, int] = {}
        while len(ports) < len(names):
            port = free_port()
            if port not in ports.values():
                ports[names[len(ports)]] = port
        return ports
    highest = 65536 - len(names)
    if not 1 <= base <= highest:
        raise Rejected(f"must be between 1 and {highest}, is {base}", field="port")
    ports = {name: base + offset for offset, name in enumerate(names)}
    taken = [f"{port} ({name})" for name, port in ports.items() if not _is_free(port)]
    if taken:
        message = f"busy on 127.0.0.1: {', '.join(taken)}"
        raise Conflict(message, field="port", hint="another --port, or none for free ones")
    return ports


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True


async def until_serving(
    addresses: Mapping[str, str], *, timeout_s: float, say: Callable[[str], None]
) -> None:
    """Wait until each service (name -> `host:port`) says it serves; Unavailable names those that do not."""
    waiting = set(addresses)
    started = asyncio.get_running_loop().time()

    async def one(name: str, address: str) -> None:
        await _until_healthy(address)
        waiting.discard(name)

    async def talk() -> None:
        while True:
            await asyncio.sleep(_TALK_S)
            passed = asyncio.get_running_loop().time() - started
            say(f"waiting for {', '.join(sorted(waiting))} ({passed:.0f} s)")

    talker = asyncio.create_task(talk())
    try:
        async with asyncio.timeout(timeout_s):
            await asyncio.gather(*(one(name, address) for name, address in addresses.items()))
    except TimeoutError:
        names = ", ".join(sorted(waiting))
        raise Unavailable(f"not ready after {timeout_s:g} s: {names}", hint="see the logs") from None
    finally:
        talker.cancel()


async def _until_healthy(address: str) -> None:
    async with grpc.aio.insecure_channel(address, options=[("grpc.enable_http_proxy", 0)]) as channel:
        check = channel.unary_unary(
            HEALTH,
            health_pb2.HealthCheckRequest.SerializeToString,
            health_pb2.HealthCheckResponse.FromString,
        )
        while True:
            try:
                reply = await check(health_pb2.HealthCheckRequest(), timeout=2.0, wait_for_ready=True)
                if reply.status == health_pb2.HealthCheckResponse.SERVING:
                    return
            except grpc.RpcError:
                pass  # not there yet: that is what is waited for
            await asyncio.sleep(_POLL_S)
