"""`python -m temper.sandbox.doctor`: what this host can isolate and enforce, without a broker.

Prints one JSON object; exit code 0 if sandboxes of the configured backend work here, 3 if they do not (the reason and the
way out are in the object). Takes the service's own `--config` and `--set`.
"""

import argparse
import asyncio
import json
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from temper.runtime.config import load
from temper.runtime.errors import Rejected, TemperError
from temper.sandbox.config import SandboxConfig


async def examine(config: SandboxConfig) -> dict[str, Any]:
    """Make one sandbox, run one expression, and tell. Raises TemperError."""
    from temper.sandbox.build import make_backend

    backend = make_backend(config)
    try:
        await backend.start()
        has = backend.capabilities
        limits = config.limits.build()
        sandbox = await backend.create("doctor", limits)
        result = await sandbox.python("1 + 1", limits)
        await sandbox.destroy()
    finally:
        await backend.close()
    return {
        "backend": has.backend,
        "works": result.stdout == b"2\n",
        "isolation": has.isolation.name.lower(),
        "cgroup_mode": has.cgroup_mode,
        "enforced": sorted(has.enforced),
        "advisory": sorted(has.advisory),
        "network_modes": list(has.network_modes),
        "notes": list(has.notes),
    }


def main(argv: Sequence[str] | None = None) -> int:
    """Returns the exit code."""
    parser = argparse.ArgumentParser(prog="temper-sandbox-doctor", description=__doc__)
    parser.add_argument("--config", type=Path, metavar="FILE")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE")
    arguments = parser.parse_args(argv)
    with tempfile.TemporaryDirectory(prefix="temper-doctor-") as directory:
        # A directory of its own: a running service's records and root are none of our business.
        sets = [*arguments.set, f"state_dir={directory}", "slots=1", "warm=0"]
        try:
            found = asyncio.run(examine(load("sandbox", SandboxConfig, file=arguments.config, sets=sets)))
        except Rejected as error:
            print(error, file=sys.stderr)  # noqa: T201 - a command's talk
            return 2
        except TemperError as error:
            found = {"works": False, "reason": error.message, "hint": error.hint}
    print(json.dumps(found, indent=2))  # noqa: T201 - a command's data
    return 0 if found["works"] else 3


if __name__ == "__main__":
    sys.exit(main())
