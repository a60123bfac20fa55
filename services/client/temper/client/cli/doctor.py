"""`temper doctor`: whether this machine can run the platform, and how the one in the data directory does."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from cyclopts import App

from temper.client.cli.exits import FAILED, OK, say
from temper.client.cli.options import DEFAULT_DATA_DIR, DataDirOption, OutputOption


@dataclass(frozen=True, slots=True)
class Finding:
    """One line. Example: `Finding("python", "ok", "3.11.2")`."""

    what: str
    """What was looked at."""
    verdict: str
    """`ok`, `warning` or `fault`."""
    detail: str
    """What was found, and the way out."""


def register(app: App) -> None:
    """Add the command."""
    app.command(doctor)


def doctor(*, data_dir: DataDirOption = DEFAULT_DATA_DIR, output: OutputOption = "table") -> int:
    """Look at Python, extras, the broker's binary, isolation, disk and ports; exit 1 if something is at fault."""
    from temper.client.cli.output import emit

    findings = [
        _python(),
        *_extras(),
        _broker(),
        _namespaces(),
        _cgroups(),
        _disk(data_dir),
        _ports(),
        *_platform(data_dir),
    ]
    emit(findings, ("what", "verdict", "detail"), output)
    faults = [finding.what for finding in findings if finding.verdict == "fault"]
    say(f"at fault: {', '.join(faults)}" if faults else "everything that is needed is there")
    return FAILED if faults else OK


def _python() -> Finding:
    import platform
    import sys

    found = platform.python_version()
    enough = sys.version_info >= (3, 11)
    return Finding("python", "ok" if enough else "fault", found if enough else f"{found}; 3.11 is needed")


def _extras() -> list[Finding]:
    from temper.client.platform.services import SERVICES, missing

    findings: list[Finding] = []
    for service in SERVICES:
        absent = missing(service)
        hint = f"{', '.join(absent)} not installed: pip install 'temper-rl[{service.name}]'"
        findings.append(
            Finding(f"extra {service.name}", "fault" if absent else "ok", hint if absent else "installed")
        )
    return findings


def _broker() -> Finding:
    from temper.runtime.embedded import binary
    from temper.runtime.errors import Unavailable

    try:
        return Finding("nats-server", "ok", binary())
    except Unavailable as error:
        return Finding("nats-server", "fault", str(error))


def _namespaces() -> Finding:
    """Whether a process may make the namespaces that sandboxes are built of."""
    import subprocess
    import sys

    # In a process of its own: unshare changes the caller for good. 0x7E020000: user, pid, net, ipc, uts, mount, cgroup.
    code = "import ctypes,os,sys; sys.exit(ctypes.CDLL(None, use_errno=True).unshare(0x{:x}) and ctypes.get_errno())"
    flags = 0x20000 | 0x20000000 | 0x40000000 | 0x08000000 | 0x04000000 | 0x10000000
    done = subprocess.run([sys.executable, "-c", code.format(flags)], check=False, timeout=20)  # noqa: S603 - our own
    if done.returncode == 0:
        return Finding("namespaces", "ok", "user, mount, pid, network, ipc, uts")
    detail = f"unshare failed (errno {done.returncode}): allow user namespaces, or run as root; sandboxes need them"
    return Finding("namespaces", "fault", detail)


def _cgroups() -> Finding:
    import os

    root = Path("/sys/fs/cgroup")
    if os.access(root / "cgroup.procs", os.W_OK) and (root / "cgroup.controllers").exists():
        controllers = (root / "cgroup.controllers").read_text().split()
        return Finding("cgroups", "ok", f"v2, controllers: {' '.join(controllers) or 'none'}")
    kind = "v1" if (root / "memory").is_dir() else "v2, not writable"
    return Finding("cgroups", "warning", f"{kind}: limits are then enforced by the sandbox's own watchdogs")


def _disk(data_dir: Path) -> Finding:
    import shutil

    place = data_dir.resolve()
    while not place.exists():
        place = place.parent
    free = shutil.disk_usage(place).free >> 20
    verdict = "ok" if free >= 1024 else "warning" if free >= 256 else "fault"
    return Finding("disk", verdict, f"{free} MB free at {place}")


def _ports() -> Finding:
    from temper.runtime.embedded import free_port

    try:
        return Finding("loopback", "ok", f"ports can be taken, such as {free_port()}")
    except OSError as error:
        return Finding("loopback", "fault", f"cannot listen on 127.0.0.1: {error}")


def _platform(data_dir: Path) -> list[Finding]:
    """Services of a running platform, with the sandbox's backend."""
    from temper.client.platform.layout import DataDir
    from temper.client.platform.lock import holder
    from temper.client.sdk import connect
    from temper.runtime.errors import TemperError

    layout = DataDir.at(data_dir)
    pid = holder(layout.lock_file)
    if pid is None:
        return [Finding("platform", "ok", f"none runs in {layout.root}")]
    try:
        with connect(data_dir=layout.root) as client:
            instances = client.platform.services()
    except TemperError as error:
        return [Finding("platform", "fault", f"process {pid}: {error}")]
    return [
        Finding(
            f"service {each.service}",
            "ok" if each.state == "ready" else "warning",
            _words(each.state, each.status),
        )
        for each in instances
    ]


def _words(state: str, status: object) -> str:
    from temper.client.cli.output import cell

    return f"{state}: {cell(status)}" if status else state
