"""`python -m temper.sandbox doctor`: what this host can isolate and enforce, without a broker.

Prints one JSON object; exit code 0 if sandboxes of the configured backend work here, 3 if they do not (the reason and the
way out are in the object). With `--all` the object has one more key, `backends`: what each backend says here, each really tried.
Takes the service's own `--config` and `--set`.
"""

import argparse
import asyncio
import json
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from temper.runtime.config import load
from temper.runtime.errors import Rejected, TemperError
from temper.sandbox.config import SandboxConfig

_PATIENCE_S: Final = 60.0
"""Longest try of one backend: an image may have to be made, a pod to be found a place for."""


async def examine(config: SandboxConfig) -> dict[str, Any]:
    """Make one sandbox, run one expression, and tell. Raises TemperError."""
    from temper.sandbox.choose import make_backend

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
        "snapshots": list(has.snapshots),
        "sessions": has.sessions,
        "start_cost": has.start_cost.value,
        "notes": list(has.notes),
    }


async def attempt(config: SandboxConfig) -> dict[str, Any]:
    """As `examine`, a failure told in the object, too."""
    try:
        async with asyncio.timeout(_PATIENCE_S):
            return await examine(config)
    except TemperError as error:
        return {"backend": config.backend, "works": False, "reason": error.message, "hint": error.hint}
    except TimeoutError:
        reason = f"it did not answer within {_PATIENCE_S:.0f} s"
        return {"backend": config.backend, "works": False, "reason": reason, "hint": ""}


async def _report(config: SandboxConfig, home: Path, *, everything: bool) -> dict[str, Any]:
    from temper.sandbox.choose import NAMES

    # Directories of their own: a running service's records and root are none of our business.
    own = {"slots": 1, "warm": 0, "warm_most": 0}
    found = await attempt(config.model_copy(update={"state_dir": home / "own", **own}))
    if everything:
        others = [name for name in NAMES if name != config.backend]
        tried = [
            await attempt(config.model_copy(update={"backend": name, "state_dir": home / name, **own}))
            for name in others
        ]
        found["backends"] = [{key: found[key] for key in found}, *tried]
    return found


def main(argv: Sequence[str] | None = None) -> int:
    """Returns the exit code."""
    parser = argparse.ArgumentParser(prog="temper-sandbox-doctor", description=__doc__)
    parser.add_argument("--config", type=Path, metavar="FILE")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE")
    parser.add_argument("--all", action="store_true", help="try every backend")
    arguments = parser.parse_args(argv)
    with tempfile.TemporaryDirectory(prefix="temper-doctor-") as directory:
        try:
            config = load("sandbox", SandboxConfig, file=arguments.config, sets=arguments.set)
            found = asyncio.run(_report(config, Path(directory), everything=arguments.all))
        except Rejected as error:
            print(error, file=sys.stderr)  # noqa: T201 - a command's talk
            return 2
    print(json.dumps(found, indent=2))  # noqa: T201 - a command's data
    return 0 if found["works"] else 3


if __name__ == "__main__":
    sys.exit(main())
