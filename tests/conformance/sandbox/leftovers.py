"""What of ours is left on this host with nobody to own it: run after the suite, `python -m tests.conformance.sandbox.leftovers`.

Looks at processes, control groups, mounts, network interfaces, named network namespaces, containers and scratch directories. What belongs
to a process that lives (a platform on this machine, another run of the suite) is not left over. Exit code 1 if anything is.
"""

import contextlib
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from temper.sandbox.engine import cgroups, identity

PROGRAMS = (
    b"temper.sandbox.engine.guest",
    b"temper-docker-",
    b"temper-cluster-",
    b"gvisor-",
    b"dockerd\0--iptables",
)
SCRATCH = ("temper-docker-*", "temper-cluster-*", "temper-doctor-*")
SETTLE_S = 10.0
"""What has just been killed may take a moment to go."""
OURS = re.compile(r"/(?:gvisor|docker|kubernetes|work)-(\d+-\d+-\d+)(?:/|$)")


def main() -> int:
    until = time.monotonic() + SETTLE_S
    while (found := look()) and time.monotonic() < until:
        time.sleep(0.5)
    end = f"{len(found)} things are left over" if found else "nothing is left over"
    sys.stdout.write("\n".join([*found, end]) + "\n")
    return 1 if found else 0


def look() -> list[str]:
    """All that is left over now."""
    return [*processes(), *groups(), *mounts(), *networks(), *containers(), *directories()]


def processes() -> Iterator[str]:
    """Launchers, inits, engines and kernels of ours whose parent is gone."""
    for place in Path("/proc").glob("[0-9]*"):
        try:
            words = (place / "cmdline").read_bytes()
            parent = int((place / "stat").read_text().rpartition(")")[2].split()[1])
        except (OSError, IndexError):
            continue
        if parent != 1 or place.name == "1" or _of_an_engine(words):
            continue
        if any(each in words for each in PROGRAMS):
            yield f"process {place.name}: {words.replace(bytes(1), b' ').decode(errors='replace')[:120]}"


def _of_an_engine(words: bytes) -> bool:
    """Whether it serves an engine that runs: those detach from it."""
    home = re.search(rb"/temper-docker-[a-z0-9_]+", words)
    return home is not None and any(
        each.startswith(b"dockerd") and home[0] in each for each in _command_lines()
    )


def _command_lines() -> Iterator[bytes]:
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with contextlib.suppress(OSError):
            yield path.read_bytes()


def groups() -> Iterator[str]:
    """Control groups of dead owners."""
    for path in cgroups.orphans(cgroups.detect()):
        yield f"control group {path}"


def mounts() -> Iterator[str]:
    """Mounts of dead owners, and of engines and clusters that only tests start."""
    for line in Path("/proc/self/mountinfo").read_text().splitlines():
        point = line.split()[4]
        owner = OURS.search(point)
        orphan = owner is not None and identity.is_dead(owner[1])
        if orphan or (any(f"/{each[:-1]}" in point for each in SCRATCH) and not _running(point)):
            yield f"mount {point}"


def networks() -> Iterator[str]:
    """No sandbox has an interface on the host's side or a namespace with a name."""
    for place in (Path("/sys/class/net"), Path("/run/netns")):
        for each in place.glob("temper*") if place.is_dir() else ():
            yield f"network {each}"


def containers() -> Iterator[str]:
    """Containers with our label on the engine of this host, whose owner is dead."""
    if not shutil.which("docker") or not Path("/var/run/docker.sock").exists():
        return
    form = '{{.ID}} {{.Label "temper.sandbox.owner"}}'
    command = ["docker", "ps", "--all", "--filter", "label=temper.sandbox.owner", "--format", form]
    for line in subprocess.run(command, capture_output=True, text=True, check=False).stdout.splitlines():
        name, _, owner = line.partition(" ")
        if identity.is_dead(owner):
            yield f"container {name}"


def directories() -> Iterator[str]:
    """Scratch directories of the tests and of the doctor that nobody uses."""
    for pattern in SCRATCH:
        for path in Path(tempfile.gettempdir()).glob(pattern):
            if not _running(str(path)):
                yield f"directory {path}"


def _running(path: str) -> bool:
    """Whether a live process still names a scratch directory, or has it as its working directory."""
    name = next((part for part in path.split("/") if part.startswith("temper-")), path).encode()
    for place in Path("/proc").glob("[0-9]*"):
        try:
            if name in (place / "cmdline").read_bytes() and int(place.name) != os.getpid():
                return True
        except OSError:
            continue
    return False


if __name__ == "__main__":
    sys.exit(main())
