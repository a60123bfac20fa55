"""`python -m temper.sandbox [doctor|mcp]`: parse the configuration, then import the rest."""

import sys

from temper.runtime.service import Context, run_service
from temper.sandbox.config import SandboxConfig


async def _build(context: Context[SandboxConfig]) -> None:
    from temper.sandbox.build import build

    await build(context)


if __name__ == "__main__":
    if sys.argv[1:2] == ["doctor"]:
        from temper.sandbox.doctor import main

        sys.exit(main(sys.argv[2:]))
    if sys.argv[1:2] == ["mcp"]:
        from temper.sandbox.mcp import main

        sys.exit(main(sys.argv[2:]))
    sys.exit(run_service("sandbox", SandboxConfig, _build))
