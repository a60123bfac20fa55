"""Wires the parts of the service together: who knows whom.

service ──> admission ──> checks ──> episodes ──> engine (sandbox hosts)
   └──────> registry <── live <── log `trajectories`
"""

from __future__ import annotations

from temper.api.qa.v1 import qa_pb2, qa_pb2_grpc
from temper.qa import builtin
from temper.qa.admission import Admission, Parts
from temper.qa.config import QaConfig
from temper.qa.engine.sandbox import SandboxProbe
from temper.qa.live import Live
from temper.qa.metrics import Metrics
from temper.qa.records import BUCKET
from temper.qa.registry import Registry
from temper.qa.service import EnvironmentService
from temper.runtime.service import Context
from temper.runtime.telemetry import get_logger


async def build(context: Context[QaConfig]) -> None:
    """Start following the registry, register what is built in, serve."""
    config, metrics = context.config, Metrics(context.metrics)
    registry = Registry(await context.bus.kv(BUCKET), context.blobs, context.clock)
    context.supervisor.start("registry", registry.follow)
    await registry.ready()
    if config.builtin:
        count = await builtin.register_all(registry, context.blobs)
        get_logger().info("builtin.registered", environments=count)
    probe = SandboxProbe(context.bus, timeout_s=config.checks.rpc_timeout_s)
    admission = Admission(Parts(registry, probe, context.log, context.clock, config.checks, metrics))
    service = EnvironmentService(registry, admission)
    live = Live(context.log, context.blobs, registry, context.clock, config.live, metrics)
    context.supervisor.start("live", live.run)
    context.on_drain("live", live.flush)
    context.on_drain("checks", admission.stop)
    subscription = await service.serve_on(context.bus)
    context.on_drain("requests", subscription.stop)
    context.grpc.add(
        qa_pb2_grpc.add_EnvironmentServiceServicer_to_server,
        service,
        qa_pb2.DESCRIPTOR.services_by_name["EnvironmentService"].full_name,
    )
    context.presence.reports(lambda: {"environments": len(registry.all()), "checking": admission.running})
