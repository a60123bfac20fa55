"""Moves commands that were delivered too often to the dead letters; their job's actor finds them there.

Every scheduler process listens; the broker gives each advisory to one of them, and gives it again if that one dies
before the command is buried.
"""

from __future__ import annotations

from contextlib import aclosing

from temper.runtime.errors import Rejected
from temper.runtime.telemetry import get_logger
from temper.scheduler.surroundings import Surroundings

SERVICES = ("rollout", "trainer")  # those that take commands


async def bury_poisoned(around: Surroundings, service: str) -> None:
    """For ever; a failure is the supervisor's to repair."""
    log = get_logger(service=service)
    async with aclosing(around.bus.poisoned(service)) as found:
        async for command in found:
            reason = f"delivered {command.delivered} times without an answer"
            try:
                await command.bury(reason)
            except Rejected as gone:
                log.info("poison.gone", id=command.envelope.id, error=str(gone))
                continue
            around.metrics.poisoned.inc()
            log.warning("poison.buried", id=command.envelope.id, subject=command.subject, reason=reason)
