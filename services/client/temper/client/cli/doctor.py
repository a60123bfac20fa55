"""`temper doctor`: whether this machine can run the platform, and how the one in the data directory does."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cyclopts import App

from temper.client.cli.exits import FAILED, OK, say
from temper.client.cli.options import DEFAULT_DATA_DIR, DataDirOption, OutputOption

_DOCTOR_S = 240.0  # one sandbox of each backend, on a machine that may be busy


@dataclass(frozen=True, slots=True)
class Finding:
    """One line. Example: `Finding("python", "ok", "3.11.2")`."""

    what: str
    """What was looked at."""
    verdict: str
    """`ok`, `warning`, `fault`, or `absent` for what nobody needs here."""
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
        *_sandboxes(),
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


def _sandboxes() -> list[Finding]:
    """What the sandbox service can isolate and enforce here: its own doctor makes a sandbox of each backend and tells."""
    import json
    import subprocess
    import sys

    command = [sys.executable, "-m", "temper.sandbox.doctor", "--all"]
    done = subprocess.run(command, check=False, timeout=_DOCTOR_S, capture_output=True, text=True)  # noqa: S603 - our own
    try:
        found = json.loads(done.stdout)
    except ValueError:
        detail = done.stderr.strip().splitlines()[-1:] or ["no answer"]
        return [Finding("sandbox", "fault", detail[0])]
    others = [each for each in found.get("backends", ()) if each["backend"] not in {found["backend"], "fake"}]
    return [*sandbox_findings(found), *(backend_finding(each) for each in others)]


def backend_finding(found: Mapping[str, Any]) -> Finding:
    """A line for a backend that is not the configured one: works, or why not. Never a fault: nothing needs it here."""
    what = f"sandbox {found['backend']}"
    if not found["works"]:
        reason = f"{found.get('reason') or 'a first expression gave no answer'}; {found.get('hint') or ''}"
        return Finding(what, "absent", reason.rstrip("; "))
    return Finding(what, "ok", f"isolation {found['isolation']}, a start costs a {found['start_cost']}")


def sandbox_findings(found: Mapping[str, Any]) -> list[Finding]:
    """Lines for the object that the sandbox service's doctor prints."""
    if not found["works"]:
        reason = f"{found.get('reason') or 'a first expression gave no answer'}; {found.get('hint') or ''}"
        return [Finding("sandbox", "fault", reason.rstrip("; "))]
    isolation = "warning" if found["isolation"] == "weak" else "ok"
    notes = "".join(f"; {note}" for note in found["notes"])
    limits = f"cgroups {found['cgroup_mode']}, enforced: {', '.join(found['enforced'])}"
    advisory = f"; only advisory: {', '.join(found['advisory'])}" if found["advisory"] else ""
    return [
        Finding("sandbox", isolation, f"{found['backend']}: isolation {found['isolation']}{notes}"),
        Finding("limits", "warning" if advisory else "ok", limits + advisory),
    ]


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
