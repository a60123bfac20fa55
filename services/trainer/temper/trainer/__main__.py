"""``python -m temper.trainer``: parse the config, then import the rest."""

from __future__ import annotations

import sys

from temper.runtime.service import Context, run_service
from temper.trainer.config import TrainerConfig


async def build(context: Context[TrainerConfig]) -> None:
    """Wire the service. Torch is imported when the first job comes."""
    from temper.trainer.actor import TrainerActor
    from temper.trainer.algorithms import registry
    from temper.trainer.engine import usable
    from temper.trainer.metrics import TrainerMetrics
    from temper.trainer.surroundings import Surroundings

    around = Surroundings(
        config=context.config,
        bus=context.bus,
        log=context.log,
        blobs=context.blobs,
        clock=context.clock,
        metrics=TrainerMetrics(context.metrics),
        instance=context.instance_id,
    )
    actor = TrainerActor(around)
    known = registry()
    context.presence.say(
        algorithms=",".join(sorted(known)),
        demonstrations=",".join(sorted(name for name, each in known.items() if not each.needs_reward)),
        engines=",".join(usable()),
    )
    context.presence.reports(actor.status)
    context.on_drain("jobs", actor.drain)
    context.supervisor.start("jobs", actor.run)


if __name__ == "__main__":
    sys.exit(run_service("trainer", TrainerConfig, build))
