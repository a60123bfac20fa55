"""`python -m temper.sandbox`: parse the configuration, then import the rest."""

import sys

from temper.runtime.service import Context, run_service
from temper.sandbox.config import SandboxConfig


async def _build(context: Context[SandboxConfig]) -> None:
    from temper.sandbox.build import build

    await build(context)


if __name__ == "__main__":
    sys.exit(run_service("sandbox", SandboxConfig, _build))
