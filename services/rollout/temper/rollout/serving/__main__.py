"""``python -m temper.rollout.serving --model DIR``: what ``temper serve rollout --model DIR`` becomes."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

import uvloop

from temper.rollout.serving.command import fail, require_installed, say, settings
from temper.rollout.serving.config import ServingSettings
from temper.runtime.errors import TemperError


def main(argv: Sequence[str] | None = None) -> int:
    """Parse and check settings, then import the rest."""
    arguments = _parser().parse_args(argv)
    try:
        config = settings(arguments.config, arguments.set)
        require_installed()
        return uvloop.run(_serve(config, arguments.model.expanduser().absolute()))
    except TemperError as error:
        return fail(error)


async def _serve(config: ServingSettings, directory: Path) -> int:
    from temper.rollout.serving.app import make_app
    from temper.rollout.serving.server import bind, serve, url
    from temper.rollout.serving.start import start_front
    from temper.runtime.clock import SystemClock
    from temper.runtime.config import read_secret
    from temper.runtime.telemetry import setup_logging

    setup_logging(config.logging, service="serving")
    token = read_secret(config.serving.token_file, field="serving.token_file")
    with bind(config.serving.host, config.serving.port) as listening:  # a port that is taken costs no loading
        front = await start_front(config, directory, SystemClock())
        try:
            app = make_app(front, token)
            await serve(
                app,
                listening,
                config.drain_timeout_s,
                lambda: say(f"serving {front.name} at {url(listening)}"),
            )
        finally:
            await front.fleet.close()
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="temper serve rollout --model",
        description="Serve a Hugging Face directory over HTTP: OpenAI's routes, and ids in, ids out.",
    )
    parser.add_argument("--model", type=Path, required=True, help="Hugging Face directory")
    parser.add_argument("--config", type=Path, help="TOML file on top of the defaults")
    parser.add_argument("--set", action="append", default=[], help="one setting: serving.port=8000")
    return parser


if __name__ == "__main__":
    sys.exit(main())
