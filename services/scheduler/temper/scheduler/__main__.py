"""`python -m temper.scheduler [--config FILE] [--set KEY=VALUE …]`."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from temper.runtime.service import Context, run_service
from temper.scheduler.config import SchedulerConfig


async def build(context: Context[SchedulerConfig]) -> None:
    """Configuration is right and the platform is there: now import the rest."""
    from temper.scheduler.build import build as put_together

    await put_together(context)


def main(argv: Sequence[str] | None = None) -> int:
    """Run the service; returns the exit code."""
    return run_service("scheduler", SchedulerConfig, build, argv)


if __name__ == "__main__":
    sys.exit(main())
