"""`python -m temper.client.platform --data-dir DIR`: the supervisor as a process; `temper up` starts it."""

from __future__ import annotations

import argparse
import asyncio
import sys
from pathlib import Path

from temper.client.cli.exits import exit_code
from temper.client.platform.detached import UpOptions, foreground
from temper.client.platform.layout import DataDir
from temper.runtime.errors import TemperError


def main() -> int:
    """Run until a signal; the exit code is that of `temper up`."""
    parser = argparse.ArgumentParser(prog="temper.client.platform")
    parser.add_argument("--data-dir", type=Path, required=True)
    parser.add_argument("--port", type=int)
    parser.add_argument("--without", action="append", default=[])
    parser.add_argument("--service-set", action="append", default=[])
    given = parser.parse_args()
    options = UpOptions(
        DataDir.at(given.data_dir), given.port, tuple(given.without), tuple(given.service_set)
    )
    try:
        return asyncio.run(foreground(options, _say))
    except TemperError as error:
        _say(f"error: {error}")
        return exit_code(error)


def _say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)  # noqa: T201 - this process's log


if __name__ == "__main__":
    sys.exit(main())
