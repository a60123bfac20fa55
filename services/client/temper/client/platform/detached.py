"""The supervisor by itself: in the foreground, or in the background for `temper up`."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass

from temper.client.platform.layout import DataDir
from temper.client.platform.lock import holder
from temper.client.platform.supervisor import READY_S, Platform, Say
from temper.client.runs.stops import Stops
from temper.client.sdk.target import Target, embedded, read_platform_file
from temper.runtime.errors import Conflict, Unavailable

LOG = "platform"
STOP_S = 60.0  # three waves of services and the broker, each with its own limit
_POLL_S = 0.1


@dataclass(frozen=True, slots=True)
class UpOptions:
    """How to bring a platform up. Example: `UpOptions(DataDir.at(Path(".temper")))`."""

    layout: DataDir
    """Its data directory."""
    base_port: int | None = None
    """First of consecutive ports; None: free ones."""
    without: tuple[str, ...] = ()
    """Services not to start."""
    overrides: Sequence[str] = ()
    """Settings of services, `service.key=value`."""


async def foreground(options: UpOptions, say: Say) -> int:
    """Run a platform until a signal asks for its end; 0 then. Raises TemperError if it cannot go on."""
    platform = Platform(
        options.layout,
        say=say,
        base_port=options.base_port,
        without=options.without,
        overrides=options.overrides,
    )
    stops = Stops(platform.kill)
    stops.listen()
    starting = asyncio.create_task(platform.start())
    asked = asyncio.create_task(stops.asked.wait())
    await asyncio.wait({starting, asked}, return_when=asyncio.FIRST_COMPLETED)
    if asked.done():
        starting.cancel()  # brings down what it had started
        await asyncio.gather(starting, return_exceptions=True)
        return 0
    await starting
    say("ready")
    await _until_asked(platform, asked, say)
    return 0


async def _until_asked(platform: Platform, asked: asyncio.Task[bool], say: Say) -> None:
    failed = asyncio.create_task(platform.wait())
    try:
        await asyncio.wait({failed, asked}, return_when=asyncio.FIRST_COMPLETED)
        if failed.done():
            failed.result()
    finally:
        failed.cancel()
        await asyncio.gather(failed, return_exceptions=True)
        say("stopping the platform")
        await platform.stop()


def background(options: UpOptions, say: Say) -> Target:
    """Start a platform that outlives this process, and wait until it is ready. Raises TemperError if it is not."""
    layout = options.layout
    layout.prepare()
    if (pid := holder(layout.lock_file)) is not None:
        raise _taken(layout, pid)
    log = layout.log_file(LOG)
    with log.open("wb") as output:
        process = subprocess.Popen(  # noqa: S603 - our own command line
            [sys.executable, "-m", "temper.client.platform", *_arguments(options)],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            start_new_session=True,
        )
    until_ready(process, layout, say)
    return embedded(layout.root)


def _arguments(options: UpOptions) -> list[str]:
    arguments = ["--data-dir", str(options.layout.root)]
    if options.base_port is not None:
        arguments += ["--port", str(options.base_port)]
    for name in options.without:
        arguments += ["--without", name]
    for override in options.overrides:
        arguments += ["--service-set", override]
    return arguments


def _taken(layout: DataDir, pid: int) -> Conflict:
    hint = f"temper down --data-dir {layout.root}; or another --data-dir"
    return Conflict(f"a platform runs in {layout.root} already (process {pid})", field="data_dir", hint=hint)


def _ended(layout: DataDir) -> Conflict | Unavailable:
    """Why a background process that is gone never was a platform: another one was faster, or its logs say it."""
    if (pid := holder(layout.lock_file)) is not None:
        return _taken(layout, pid)
    return Unavailable("the platform did not start", hint=f"its logs are in {layout.logs}")


def until_ready(process: subprocess.Popen[bytes], layout: DataDir, say: Say) -> None:
    """Relay what the background process says until it is ready."""
    deadline = time.monotonic() + READY_S + 30.0  # its own limit comes first, with a better message
    shown = 0
    while time.monotonic() < deadline:
        ended = process.poll() is not None
        lines = layout.log_file(LOG).read_text(errors="replace").splitlines()
        for line in lines[shown:]:
            say(line)
        shown = len(lines)
        if ended:
            raise _ended(layout)
        if layout.state_file.exists() and (read_platform_file(layout.root) or {}).get("pid") == process.pid:
            return
        time.sleep(_POLL_S)
    process.kill()
    raise Unavailable("the platform was not ready in time", hint=f"see {layout.logs}")


def down(layout: DataDir, *, force: bool, timeout_s: float = STOP_S) -> bool:
    """Stop the platform in a data directory. False if none runs there; Unavailable if it does not end in time."""
    pid = holder(layout.lock_file)
    if pid is None:
        layout.remove_state()  # left by a platform that was killed
        return False
    os.kill(pid, signal.SIGKILL if force else signal.SIGTERM)
    deadline = time.monotonic() + timeout_s
    while holder(layout.lock_file) is not None:
        if time.monotonic() > deadline:
            raise Unavailable(
                f"process {pid} did not stop within {timeout_s:g} s", hint="temper down --force"
            )
        time.sleep(_POLL_S)
    layout.remove_state()
    return True
