"""The life of a service process: parse, connect, build, serve, drain.

    parse      arguments and configuration; before anything heavy is imported, so that a mistake costs no second
    connect    bus and event log, each with a bounded wait that says what it waits for; topology applied
    build      the service's own `build(context)`: registers servicers, starts supervised work, names its drains
    serve      gRPC listens, readiness on, presence beats, until SIGTERM, SIGINT, a drain order or a failure
    drain      readiness off -> the service's drains, newest first (stop fetching, finish or nak, release leases)
               -> gRPC -> supervised tasks -> log flushed -> presence withdrawn -> bus closed

A service's `__main__` is `sys.exit(run_service("rollout", RolloutConfig, build))` and imports its engine in `build`.

| exit code | meaning                                                         |
| --------- | --------------------------------------------------------------- |
| 0         | drained as asked                                                |
| 2         | arguments or configuration are wrong; the message names the key |
| 3         | a part it needs was not there in time, or a port is taken       |
| 4         | supervised work failed more often than its limit allows         |
| 130, 143  | a second SIGINT or SIGTERM cut the drain short                  |
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import re
import secrets
import signal
import socket
import sys
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Generic, TypeVar

import uvloop
from prometheus_client import CollectorRegistry

from temper.runtime import topology
from temper.runtime.blobs import BlobStore
from temper.runtime.bus.base import Bus
from temper.runtime.clock import Clock, SystemClock
from temper.runtime.config import ServiceConfig, load
from temper.runtime.connections import open_bus, open_log, patiently
from temper.runtime.errors import Rejected, TemperError
from temper.runtime.log.base import EventLog
from temper.runtime.presence import Presence
from temper.runtime.rpc import GrpcServer
from temper.runtime.supervisor import GaveUp, Supervisor
from temper.runtime.telemetry import get_logger, new_registry, serve_metrics, setup_logging
from temper.runtime.tracing import flush_tracing, setup_tracing

C = TypeVar("C", bound=ServiceConfig)
T = TypeVar("T")
Drain = Callable[[], Awaitable[None]]

OK, BAD_CONFIG, NOT_AVAILABLE, FAILED = 0, 2, 3, 4
_PARENT_POLL_S = 1.0
_GRPC_GRACE_S = 1.0  # streams of watchers end with it; unary calls are short


@dataclass(slots=True)
class Context(Generic[C]):
    """What `build` gets: everything a service may touch outside itself."""

    name: str
    """Service name, e.g. `rollout`."""
    instance_id: str
    """Unique among live instances; safe as part of a subject."""
    config: C
    """Validated settings."""
    clock: Clock
    """The only source of time."""
    bus: Bus
    """Connected; the topology is applied."""
    log: EventLog
    """Connected."""
    blobs: BlobStore
    """Object storage."""
    metrics: CollectorRegistry
    """Register Prometheus series here."""
    supervisor: Supervisor
    """Runs the service's coroutines and restarts them."""
    grpc: GrpcServer
    """Add servicers in `build`; it listens afterwards."""
    presence: Presence
    """Give it a status function; it beats every two seconds."""
    stopping: asyncio.Event = field(default_factory=asyncio.Event)
    """Set when the drain begins."""
    drains: list[tuple[str, Drain]] = field(default_factory=list[tuple[str, Drain]])
    """What `on_drain` registered, oldest first."""

    def on_drain(self, name: str, drain: Drain) -> None:
        """Run `drain` when the service stops; the last one registered runs first."""
        self.drains.append((name, drain))

    def stop(self) -> None:
        """Ask the service to drain and exit 0."""
        self.stopping.set()


Build = Callable[[Context[C]], Awaitable[None]]


def run_service(name: str, config_type: type[C], build: Build[C], argv: Sequence[str] | None = None) -> int:
    """Run the whole life of one process; returns its exit code."""
    arguments = _parser(name).parse_args(argv)
    try:
        config = load(name, config_type, file=arguments.config, sets=arguments.set)
    except TemperError as error:
        print(f"temper-{name}: {error}", file=sys.stderr)  # noqa: T201 - logging is not configured yet
        return BAD_CONFIG
    if arguments.show_config:
        _print_settings(config, arguments.output)
        return OK
    instance = arguments.instance or new_instance_id()
    setup_logging(config.logging, service=name, instance=instance)
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(_life(name, instance, config, build, exit_with_parent=arguments.exit_with_parent))


async def _life(name: str, instance: str, config: C, build: Build[C], *, exit_with_parent: bool) -> int:
    log = get_logger()
    stopping = asyncio.Event()
    _on_signals(stopping)
    try:
        setup_tracing(name)
        async with AsyncExitStack() as stack:
            context = await _unless(stopping, connect(name, instance, config, stack, stopping))
            if context is None:
                return OK
            if exit_with_parent:
                context.supervisor.start("parent", lambda: _watch_parent(context))
            await serve(context, build)
    except Rejected as error:
        log.error("service.rejected", error=str(error))
        return BAD_CONFIG
    except GaveUp as error:
        log.error("service.gave_up", error=str(error), exc_info=error.__cause__)
        return FAILED
    except TemperError as error:
        log.error("service.unavailable", error=str(error))
        return NOT_AVAILABLE
    finally:
        flush_tracing()
    return OK


async def _unless(stopping: asyncio.Event, work: Coroutine[Any, Any, T]) -> T | None:
    """The result of `work`; None, with `work` cancelled, when a stop is asked for first."""
    task = asyncio.create_task(work)
    asked = asyncio.create_task(stopping.wait())
    try:
        await asyncio.wait({task, asked}, return_when=asyncio.FIRST_COMPLETED)
        return await task if task.done() else None
    finally:
        for each in (task, asked):
            each.cancel()
        await asyncio.wait({task, asked})


async def connect(
    name: str, instance: str, config: C, stack: AsyncExitStack, stopping: asyncio.Event
) -> Context[C]:
    """Open everything that `config` names; `stack` closes it in the reverse order."""
    clock = SystemClock()
    registry = new_registry()
    bus = open_bus(config.bus, source=f"{name}/{instance}")
    await patiently(bus.connect, "the broker", config.bus.url, config.bus.connect_timeout_s, clock)
    stack.push_async_callback(bus.close)
    await topology.apply(bus)  # type: ignore[arg-type]  # every Bus that open_bus makes administers its server
    log = open_log(config.log, bus)
    await patiently(log.connect, "the event log", config.log.url, config.log.connect_timeout_s, clock)
    stack.push_async_callback(log.close)
    presence = Presence(name, instance, bus, clock)
    metrics = serve_metrics(config.metrics, registry, lambda: presence.state == "ready")
    if metrics is not None:
        stack.callback(metrics.close)
        presence.say(metrics=f"{metrics.host}:{metrics.port}")
    return Context(
        name=name,
        instance_id=instance,
        config=config,
        clock=clock,
        bus=bus,
        log=log,
        blobs=BlobStore.configured(config.blobs),
        metrics=registry,
        supervisor=Supervisor(clock=clock),
        grpc=GrpcServer(config.grpc, registry),
        presence=presence,
        stopping=stopping,
    )


async def serve(context: Context[C], build: Build[C]) -> None:
    """Build, serve until asked to stop, drain. Raises what the supervisor gave up on."""
    log = get_logger()
    try:
        await build(context)
        await context.grpc.start()
        if context.grpc.address:
            context.presence.say(grpc=context.grpc.address)
        context.supervisor.start("presence", context.presence.beat)
        context.supervisor.start("drain-orders", lambda: _watch_drain_orders(context))
        await _set_state(context, ready=True)
        log.info("service.ready", grpc=context.grpc.address)
        await _until_stopped(context)
    finally:
        await drain(context)
        log.info("service.drained")


async def drain(context: Context[C]) -> None:
    """Stop taking work, finish what is in flight within `drain_timeout_s`, release everything."""
    context.stopping.set()
    await _set_state(context, ready=False)
    try:
        async with asyncio.timeout(context.config.drain_timeout_s):
            for name, step in reversed(context.drains):
                await _drain_step(name, step)
    except TimeoutError:
        get_logger().warning("service.drain_timeout", seconds=context.config.drain_timeout_s)
    await context.grpc.stop(_GRPC_GRACE_S)
    await context.supervisor.stop()
    await context.presence.withdraw()


async def _drain_step(name: str, step: Drain) -> None:
    """One step; a part that is away (the broker, say) must not keep the others from their turn."""
    get_logger().debug("service.drain", step=name)
    try:
        await step()
    except TemperError as error:
        get_logger().warning("service.drain_failed", step=name, error=str(error))


async def _set_state(context: Context[C], *, ready: bool) -> None:
    context.presence.state = "ready" if ready else "draining"
    await context.grpc.set_ready(ready)
    await context.presence.announce()


async def _until_stopped(context: Context[C]) -> None:
    """Return when a stop is asked for; raise when the supervisor gives up."""
    await _unless(context.stopping, context.supervisor.wait())


def _on_signals(stopping: asyncio.Event) -> None:
    """The first signal drains, the second ends the process at once."""
    loop = asyncio.get_running_loop()

    def handle(number: signal.Signals) -> None:
        if stopping.is_set():
            os._exit(128 + number)
        get_logger().info("service.signal", signal=number.name)
        stopping.set()

    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, handle, number)


async def _watch_drain_orders(context: Context[C]) -> None:
    """A drain order is an event addressed to this instance (`temper service drain`)."""
    subject = topology.evt("platform", "drain", context.name, context.instance_id)
    async for _ in context.bus.events(subject):
        get_logger().info("service.drain_ordered")
        context.stop()


async def _watch_parent(context: Context[C]) -> None:
    """Drain when the process that started this one is gone: nothing may be left behind by a killed launcher."""
    parent = os.getppid()
    while os.getppid() == parent:
        await context.clock.sleep(_PARENT_POLL_S)
    get_logger().warning("service.orphaned", parent=parent)
    context.stop()


def new_instance_id() -> str:
    """Host, process and a random part, so that a restarted process is another instance."""
    host = re.sub(r"[^A-Za-z0-9-]", "-", socket.gethostname().partition(".")[0])[:40]
    return f"{host}-{os.getpid()}-{secrets.token_hex(2)}"


def _parser(name: str) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog=f"temper-{name}", description=f"The {name} service of temper.")
    parser.add_argument(
        "--config", type=Path, metavar="FILE", help="TOML file on top of the packaged defaults"
    )
    parser.add_argument(
        "--set", action="append", default=[], metavar="KEY=VALUE", help="one value, e.g. bus.url=…"
    )
    parser.add_argument("--instance", metavar="ID", help="instance id; a fresh one when absent")
    parser.add_argument(
        "--exit-with-parent", action="store_true", help="drain when the starting process is gone"
    )
    parser.add_argument(
        "--show-config", action="store_true", help="print every value with its source, and exit"
    )
    parser.add_argument("--output", choices=("table", "json"), default="table", help="form of --show-config")
    return parser


def _print_settings(config: ServiceConfig, output: str) -> None:
    settings = config.explain()
    if output == "json":
        rows = [{"key": each.key, "value": each.value, "source": each.source} for each in settings]
        print(json.dumps(rows, default=str, indent=2))  # noqa: T201 - this is the command's data
        return
    width = max(len(each.key) for each in settings)
    for each in settings:
        print(f"{each.key:<{width}}  {each.value!s:<32}  {each.source}")  # noqa: T201 - as above
