"""``python -m temper.rollout``: parse the config, then import the rest."""

from __future__ import annotations

import sys

from temper.rollout.config import RolloutConfig
from temper.runtime.service import Context, run_service


async def build(context: Context[RolloutConfig]) -> None:
    """Wire the service. Torch is imported when the first policy is loaded."""
    from temper.rollout.actor import RolloutActor
    from temper.rollout.engine.choose import make_engine
    from temper.rollout.metrics import RolloutMetrics
    from temper.rollout.permits import Permits
    from temper.rollout.policies import Policies
    from temper.rollout.sandbox import Sandboxes
    from temper.rollout.state import Worker
    from temper.rollout.status import Status

    config, clock, bus = context.config, context.clock, context.bus
    metrics = RolloutMetrics(context.metrics)
    worker = Worker(slots=config.worker.groups, policies=config.worker.policies)
    policies = Policies(
        bus, context.blobs, clock, worker, lambda: make_engine(config.engine, clock), context.instance_id
    )
    policies.on_loaded = metrics.load_seconds.observe
    sandboxes = Sandboxes(
        bus,
        clock,
        call_timeout_s=config.sandbox.call_timeout_s,
        lease_s=config.sandbox.lease_s,
        host_wait_s=config.sandbox.host_wait_s,
    )
    permits = Permits(
        config.worker.episodes, lambda: [engine.stats() for engine in policies.engines().values()]
    )
    actor = RolloutActor(
        config,
        bus,
        context.log,
        context.blobs,
        clock,
        worker,
        policies,
        sandboxes,
        permits,
        metrics,
        context.instance_id,
    )
    context.presence.reports(Status(worker, policies, permits, metrics, clock, config.engine.name))
    context.on_drain("policies", policies.close)
    context.on_drain("groups", actor.drain)
    context.supervisor.start("policies", policies.watch)
    context.supervisor.start("groups", actor.run)


if __name__ == "__main__":
    sys.exit(run_service("rollout", RolloutConfig, build))
