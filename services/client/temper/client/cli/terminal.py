"""A conversation between this terminal and one in a sandbox: keys there, output here, size kept in step."""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import sys
import termios
import tty
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

from temper.client.cli.exits import FAILED, OK
from temper.runtime.errors import TemperError

if TYPE_CHECKING:
    from temper.client.sdk.sandbox import Place, SandboxClient

_KEYS = 4096
_END_OF_FILE = b"\x04"


async def converse(client: SandboxClient, place: Place, argv: Sequence[str]) -> int:
    """Run until the program ends; its exit code decides ours. Raises TemperError."""
    size = shutil.get_terminal_size()
    program = await client.start(place, argv, terminal=True, rows=size.lines, columns=size.columns)
    loop = asyncio.get_running_loop()
    keys: asyncio.Queue[bytes] = asyncio.Queue()
    resized = asyncio.Event()
    with _raw():
        loop.add_signal_handler(signal.SIGWINCH, resized.set)
        _listen(loop, keys)
        helpers = [
            asyncio.create_task(_type(client, place, program, keys)),
            asyncio.create_task(_follow_size(client, place, program, resized)),
        ]
        try:
            async for chunk in client.output(place, program):
                sys.stdout.buffer.write(chunk.data)
                sys.stdout.buffer.flush()
        finally:
            loop.remove_reader(sys.stdin.fileno())
            loop.remove_signal_handler(signal.SIGWINCH)
            for helper in helpers:
                helper.cancel()
    result = await client.close(place, program)
    return OK if result.HasField("exit_code") and result.exit_code == 0 else FAILED


@contextmanager
def _raw() -> Iterator[None]:
    """Keys arrive as they are pressed; without a terminal of our own there is nothing to change."""
    if not sys.stdin.isatty():
        yield
        return
    before = termios.tcgetattr(sys.stdin)
    tty.setraw(sys.stdin)
    try:
        yield
    finally:
        termios.tcsetattr(sys.stdin, termios.TCSADRAIN, before)


def _listen(loop: asyncio.AbstractEventLoop, keys: asyncio.Queue[bytes]) -> None:
    try:
        loop.add_reader(sys.stdin.fileno(), _read_keys, loop, keys)
    except PermissionError:  # a file, /dev/null: always ready, so the kernel does not wait for it
        while data := os.read(sys.stdin.fileno(), _KEYS):
            keys.put_nowait(data)
        keys.put_nowait(_END_OF_FILE)


def _read_keys(loop: asyncio.AbstractEventLoop, keys: asyncio.Queue[bytes]) -> None:
    data = os.read(sys.stdin.fileno(), _KEYS)
    if not data:  # a pipe at its end: what a terminal says by Ctrl-D
        loop.remove_reader(sys.stdin.fileno())
    keys.put_nowait(data or _END_OF_FILE)


async def _type(client: SandboxClient, place: Place, program: str, keys: asyncio.Queue[bytes]) -> None:
    while True:
        data = await keys.get()
        try:
            await client.type(place, program, data)
        except TemperError:  # it has ended; its output says so too
            return


async def _follow_size(client: SandboxClient, place: Place, program: str, resized: asyncio.Event) -> None:
    while True:
        await resized.wait()
        resized.clear()
        size = shutil.get_terminal_size()
        await client.resize(place, program, size.lines, size.columns)
