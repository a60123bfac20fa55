"""One command from its start to its end: pipes, the wait, the kill at a limit, the verdict."""

import asyncio
import contextlib
import os
import signal
from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Final

from temper.sandbox.engine.base import Command, CommandResult, Evidence, Limits, Sink, Stream
from temper.sandbox.engine.guest import wire
from temper.sandbox.engine.link import Link
from temper.sandbox.engine.output import PipeReader
from temper.sandbox.engine.verdict import Ending
from temper.sandbox.engine.watch import Watch

DELIVER_S: Final = 30.0
"""Longest wait for a slow sink to take what a command has left in its pipes."""

Judge = Callable[[Ending, Evidence, bool], CommandResult]
Enforce = Callable[[Ending], Awaitable[None]]


class Run:
    """One command of a link. `number` is unique among the link's commands."""

    def __init__(self, link: Link, number: int, watch: Watch, limits: Limits, sink: Sink | None) -> None:
        self._link = link
        self._number = number
        self._watch = watch
        self._limits = limits
        self._sink = sink
        self.ended: asyncio.Future[wire.Message] = link.expect(number)
        """Init's report of its end."""

    async def until_its_end(self, command: Command, enforce: Enforce, judge: Judge) -> CommandResult:
        """Run it; `enforce` kills what must go at a limit, `judge` makes the verdict from the evidence."""
        with contextlib.ExitStack() as cleanup:
            readers = self._start(command, cleanup)
            ending = await self._watch.wait(self.ended)
            await enforce(ending)
            evidence = self._watch.evidence()
            for reader in readers:
                await reader.finish(DELIVER_S)
            truncated = any(reader.buffer.truncated for reader in readers)
            result = judge(ending, evidence, truncated)
            output = [reader.buffer.value() for reader in readers]
        self._link.forget(self._number)
        result = replace(result, stdout=output[0], stderr=output[1])
        return with_status(result, self.ended.result() if self.ended.done() else None)

    def _start(self, command: Command, cleanup: contextlib.ExitStack) -> list[PipeReader]:
        pipes = [os.pipe2(os.O_CLOEXEC) for _ in range(2)]
        readers: list[PipeReader] = []
        for (read_end, _), stream in zip(pipes, Stream, strict=True):
            reader = PipeReader(
                read_end, self._limits.output_bytes, self._watch.flood, tagged(self._sink, stream)
            )
            cleanup.callback(reader.close)
            readers.append(reader)
        message = {
            "op": "spawn",
            "id": self._number,
            "argv": list(command.argv),
            "env": dict(command.env),
            "cwd": command.cwd,
        }
        self._link.send(message, (source(cleanup, command.stdin), pipes[0][1], pipes[1][1]))
        for _, writer in pipes:
            os.close(writer)
        return readers


def tagged(sink: Sink | None, stream: Stream) -> Callable[[bytes], Awaitable[None]] | None:
    """The sink of one stream."""
    return None if sink is None else lambda data: sink(stream, data)


def source(cleanup: contextlib.ExitStack, content: bytes) -> int:
    """A descriptor to read `content` from: a sealed-off memory file, so a command that never reads blocks nobody."""
    if not content:
        descriptor = os.open("/dev/null", os.O_RDONLY | os.O_CLOEXEC)
    else:
        descriptor = os.memfd_create("stdin", os.MFD_CLOEXEC)
        view = memoryview(content)
        while view:
            view = view[os.write(descriptor, view) :]
        os.lseek(descriptor, 0, os.SEEK_SET)
    cleanup.callback(os.close, descriptor)
    return descriptor


def with_status(result: CommandResult, event: wire.Message | None) -> CommandResult:
    """The result with the exit code, signal or refusal that init reported."""
    if event is None:
        return result
    if event["event"] == "refused":
        return replace(result, error=event["error"])
    code = os.waitstatus_to_exitcode(event["status"])
    return replace(result, exit_code=code if code >= 0 else None, signal=-code if code < 0 else None)


async def terminate(
    link: Link, message: wire.Message, ended: "asyncio.Future[wire.Message]", grace_s: float
) -> None:
    """TERM by `message`, then wait for the end or the grace."""
    link.send({**message, "signal": int(signal.SIGTERM)})
    await asyncio.wait({ended, link.died}, timeout=grace_s, return_when=asyncio.FIRST_COMPLETED)
