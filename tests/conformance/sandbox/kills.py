"""Kill the host's service again and again, at moments that chance picks: `python -m tests.conformance.sandbox.kills BACKEND DIRECTORY ROUNDS`.

Each round is a service in a process of its own that reclaims what the last one left, makes sandboxes, runs things in them, and is
killed with SIGKILL in the middle of it. One state directory for all. Prints how many had come how far.
"""

import asyncio
import json
import os
import random
import signal
import sys
import time
from pathlib import Path

from tests.conformance.sandbox.conftest import LIMITS, MAKERS

from temper.sandbox.engine.base import Backend, Command

LONGEST_S = 60.0
STEPS = b"sced"
"""What a service writes as it goes: started, created, executed, destroyed; then over again from `c`."""


async def serve(backend: Backend, steps: int) -> None:
    await backend.start()
    os.write(steps, b"s")
    for turn in range(1 << 30):
        sandbox = await backend.create(f"n{turn}", LIMITS)
        os.write(steps, b"c")
        await sandbox.execute(
            Command(("/bin/sh", "-c", "setsid sleep 4747 & sleep 4747 & echo 1 > /tmp/a")), LIMITS
        )
        await sandbox.python("import subprocess; p = subprocess.Popen(['sleep', '4747'])", LIMITS)
        os.write(steps, b"e")
        await sandbox.destroy()
        os.write(steps, b"d")


def one(name: str, place: Path, chance: random.Random) -> bytes:
    """A service from its birth to its death; returns what it had written."""
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            asyncio.run(serve(MAKERS[name](place), writer))
        finally:
            os._exit(1)
    os.close(writer)
    said = b""
    wanted = chance.randrange(0, 12)  # so many steps, and a little more
    until = time.monotonic() + LONGEST_S
    with os.fdopen(reader, "rb", buffering=0) as file:
        while len(said) < wanted and time.monotonic() < until and (more := file.read(1)):
            said += more
        time.sleep(chance.uniform(0.0, 0.02))
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
    return said


def main(name: str, place: Path, rounds: int, seed: int) -> dict[str, int]:
    chance = random.Random(seed)
    counts = dict.fromkeys("-" + STEPS.decode(), 0)
    for _ in range(rounds):
        said = one(name, place, chance)
        counts[said[-1:].decode() or "-"] += 1
    asyncio.run(_after(name, place))
    return counts


async def _after(name: str, place: Path) -> None:
    """The successor that is not killed: it reclaims the last one's, and leaves nothing itself."""
    backend = MAKERS[name](place)
    await backend.start()
    await backend.close()


if __name__ == "__main__":
    told = main(sys.argv[1], Path(sys.argv[2]), int(sys.argv[3]), int(sys.argv[4]))
    sys.stdout.write(json.dumps(told) + "\n")
