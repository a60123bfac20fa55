"""How an attack is run: a real program inside, its own account as text, and what the host sees afterwards."""

from dataclasses import replace

from tests.conformance.sandbox.conftest import LIMITS

from temper.sandbox.engine.base import Command, CommandResult, Limits, Sandbox

LIBC = """
import ctypes, os, errno
libc = ctypes.CDLL(None, use_errno=True)
def call(number, *arguments):
    ctypes.set_errno(0)
    words = [a if isinstance(a, bytes) else ctypes.c_long(a) for a in arguments]
    result = libc.syscall(ctypes.c_long(number), *words)
    return "allowed" if result >= 0 else errno.errorcode.get(ctypes.get_errno(), "?")
def attempt(action):
    try:
        return f"allowed: {action()!r}"
    except OSError as error:
        return errno.errorcode.get(error.errno, str(error))
"""
"""Put before the code of an attack: `call(number, ...)` and `attempt(action)` say "allowed" or the name of the errno."""


async def code(sandbox: Sandbox, text: str, limits: Limits = LIMITS) -> str:
    """What Python prints in the sandbox's interpreter, and the exception that ended it."""
    result = await sandbox.python(LIBC + text, limits)
    return (result.stdout.decode(errors="replace") + (result.error or "")).strip()


async def shell(sandbox: Sandbox, line: str, limits: Limits = LIMITS) -> CommandResult:
    """A line of /bin/sh in the sandbox."""
    return await sandbox.execute(Command(("/bin/sh", "-c", line)), limits)


async def said(sandbox: Sandbox, line: str) -> str:
    """What a line of /bin/sh says on both streams."""
    result = await shell(sandbox, line)
    return (result.stdout + result.stderr).decode(errors="replace").strip()


def within(seconds: float) -> Limits:
    """The suite's limits with another wall clock."""
    return replace(LIMITS, wall_s=seconds)
