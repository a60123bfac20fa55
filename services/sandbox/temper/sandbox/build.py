"""Wiring of the service: which parts there are and who gets whom."""

import asyncio
import ipaddress
from collections.abc import Sequence

from temper.api.common.v1 import common_pb2
from temper.runtime.bus.base import Subscription
from temper.runtime.errors import Rejected
from temper.runtime.service import Context
from temper.runtime.telemetry import get_logger
from temper.sandbox import environments
from temper.sandbox.actor import SandboxActor
from temper.sandbox.branching import Branches
from temper.sandbox.choose import make_backend
from temper.sandbox.config import SandboxConfig
from temper.sandbox.control import Control
from temper.sandbox.egress import Secret
from temper.sandbox.egress import Settings as ProxySettings
from temper.sandbox.egress.announcer import Announcer
from temper.sandbox.egress.desk import EgressDesk
from temper.sandbox.engine.base import Limits
from temper.sandbox.episodes import Episodes
from temper.sandbox.gate import Gate
from temper.sandbox.gatekeeper import Gatekeeper
from temper.sandbox.host import SandboxHost
from temper.sandbox.metrics import Metrics
from temper.sandbox.pool import WarmPool
from temper.sandbox.recorder import Recorder
from temper.sandbox.tenancy import Settings


async def build(context: Context[SandboxConfig]) -> None:
    """Start the backend, serve the bus, register the drain. Raises Unavailable if the host cannot isolate."""
    config = context.config
    metrics = Metrics(context.metrics)
    backend = make_backend(config)
    await backend.start()
    has = backend.capabilities
    get_logger().info(
        "sandbox.backend",
        backend=has.backend,
        isolation=has.isolation.name.lower(),
        cgroups=has.cgroup_mode,
        advisory=sorted(has.advisory),
        notes=list(has.notes),
    )
    context.on_drain("backend", backend.close)
    recorder = Recorder(context.log, context.clock, metrics)
    limits: Limits = config.limits.build()
    pool = WarmPool(
        backend, limits, config.warm, config.warm_most, recycles=config.recycles, clock=context.clock
    )
    settings = Settings(
        config.slots,
        config.lease_s,
        config.admission_wait_s,
        config.reap_every_s,
        config.drain_timeout_s / 2,  # the other half is for destroying and flushing
    )
    gatekeeper = Gatekeeper(
        context.bus, context.clock, expires_s=config.approvals.expires_s, hold_s=config.approvals.hold_s
    )
    host = SandboxHost(
        context.instance_id,
        backend,
        pool,
        settings,
        clock=context.clock,
        metrics=metrics,
        publish=recorder.put,
        egress=_egress(context, gatekeeper),
    )
    worlds = environments.EnvironmentHost(
        _fetcher(context),
        environments.Settings(
            config.state_dir.absolute() / "bundles",
            config.env_workers,
            config.env_memory_bytes,
            config.first_uid - 1,
        ),
    )
    context.on_drain("environments", worlds.close)
    episodes = Episodes(
        host,
        worlds,
        limits,
        allow_weak=config.allow_weak,
        clock=context.clock,
        metrics=metrics,
        gate=Gate(gatekeeper, tuple(config.approvals.tools), commands=config.approvals.commands),
    )
    branches = Branches(host, context.clock, config.lease_s)
    control = Control(host, branches, limits, context.blobs, episodes.gate)
    actor = SandboxActor(host, episodes, control, limits, slots=config.slots)
    subscriptions = await actor.serve(context.bus)

    async def leave() -> None:
        await stop(control, subscriptions)
        await host.drain()
        await recorder.flush()

    context.on_drain("sessions", leave)
    context.presence.reports(host.status)
    context.supervisor.start("reaper", host.reap)
    context.supervisor.start("warm-pool", pool.fill)
    context.supervisor.start("recorder", recorder.run)


async def stop(control: Control, subscriptions: Sequence[Subscription]) -> None:
    """Take no new request and see those in flight end. Whoever only waits for news is answered at once.

    All at the same time, the queue group's first: one after the other, each may take as long as its longest request.
    """
    control.hurry()
    await asyncio.gather(*(subscription.stop() for subscription in subscriptions))


def _fetcher(context: Context[SandboxConfig]) -> environments.Fetch:
    async def fetch(ref: common_pb2.BlobRef) -> bytes:
        return await context.blobs.get(ref)

    return fetch


def _egress(context: Context[SandboxConfig], gatekeeper: Gatekeeper) -> EgressDesk:
    """Proxies for sessions that ask for a network, and an event for each attempt that they refuse."""
    config = context.config.egress
    secrets = {
        each.name: Secret(each.header, each.file, tuple(each.hosts), each.prefix) for each in config.secrets
    }
    try:
        internal = tuple(ipaddress.ip_network(each) for each in config.internal)
    except ValueError as error:
        raise Rejected(str(error), field="egress.internal", hint='for example "10.1.0.0/16"') from None
    announcer = Announcer(context.bus)
    context.supervisor.start("egress-events", announcer.run)
    return EgressDesk(
        context.instance_id,
        ProxySettings(internal, secrets),
        open_approved=config.allow_open,
        gatekeeper=gatekeeper,
        clock=context.clock,
        tell=announcer.tell,
    )
