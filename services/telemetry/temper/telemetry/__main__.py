"""`python -m temper.telemetry`: parse the configuration first, import the service only then."""

import sys

from temper.runtime.service import Context, run_service
from temper.telemetry.config import TelemetryConfig


async def _build(context: Context[TelemetryConfig]) -> None:
    from temper.telemetry.build import build

    await build(context)


if __name__ == "__main__":
    sys.exit(run_service("telemetry", TelemetryConfig, _build))
