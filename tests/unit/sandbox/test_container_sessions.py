"""Sessions and doors of containers without a container: the real keeper and forwarder as processes of this host, and hostile ones."""

import asyncio
import contextlib
import os
import signal
import socket
import sys
import termios
from collections.abc import AsyncIterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from temper.runtime.errors import Rejected, Unavailable
from temper.runtime.testing import eventually
from temper.sandbox.engine.base import CommandResult, Evidence, Limits, Outcome, SessionSpec, Sink, Stream
from temper.sandbox.engine.container.door import Door
from temper.sandbox.engine.container.line import Line
from temper.sandbox.engine.container.local import LocalProgram
from temper.sandbox.engine.container.processes import Listed, of_sessions
from temper.sandbox.engine.container.sessions import ContainerSession, open_session
from temper.sandbox.engine.docker import census
from temper.sandbox.engine.guest import forwarder, keeper, keys, wire
from temper.sandbox.engine.interactive import ProcessInfo
from temper.sandbox.engine.verdict import Ending, judge
from temper.sandbox.engine.watch import ReportedMeter

LIMITS = Limits(wall_s=60.0, output_bytes=1 << 16, grace_s=0.05)
WAIT_S = 60.0


class Here:
    """This host, as a container without walls."""

    def __init__(self) -> None:
        self.died: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.meter = ReportedMeter()
        self.files = None
        self.network = -1
        self.python: Sequence[str] = (sys.executable, "-S")
        self.environment: Mapping[str, str] = {"PATH": "/usr/bin:/bin"}

    async def start(self, argv: Sequence[str], env: Mapping[str, str], *, stdin: bool) -> LocalProgram:
        return LocalProgram.begin(argv, stdin=stdin, env=dict(env))

    async def sweep(self, number: int, spared: frozenset[int] = frozenset()) -> None: ...

    async def pause(self) -> None: ...

    async def resume(self) -> None: ...

    async def remove(self) -> None: ...


def verdict(ending: Ending, evidence: Evidence, truncated: bool) -> CommandResult:
    return CommandResult(judge(ending, evidence, disk_full=False, truncated=truncated), truncated=truncated)


async def opened(spec: SessionSpec, sink: Sink | None = None) -> ContainerSession:
    return await open_session(Here(), "s1", spec, sink, verdict)


@pytest.fixture
async def shell() -> AsyncIterator[ContainerSession]:
    session = await opened(SessionSpec())
    yield session
    await session.close(0)


class Heard:
    """A sink that keeps what it is given, and can be waited on."""

    def __init__(self) -> None:
        self.text = b""
        self._news = asyncio.Event()

    async def __call__(self, _: Stream, data: bytes) -> None:
        self.text += data
        self._news.set()

    async def until(self, said: bytes) -> None:
        async with asyncio.timeout(WAIT_S):
            while said not in self.text:
                self._news.clear()
                await self._news.wait()


async def test_a_shell_remembers_and_tells_each_status_exactly(shell: ContainerSession) -> None:
    await shell.run("cd /tmp; A=7", LIMITS)
    found = await shell.run('echo "$A $PWD"; echo no >&2; (exit 9)', LIMITS)
    assert (found.exit_code, found.stdout, found.stderr) == (9, b"7 /tmp\n", b"no\n")
    assert (await shell.run("printf 'no end'", LIMITS)).stdout == b"no end"


async def test_output_over_the_cap_is_whole_at_both_ends(shell: ContainerSession) -> None:
    found = await shell.run("seq 100000", LIMITS)
    assert (found.truncated, found.exit_code) == (True, 0)
    assert found.stdout.startswith(b"1\n2\n")
    assert found.stdout.endswith(b"\n100000\n")


async def test_at_a_limit_the_tree_is_gone_when_it_is_told_orphans_included(shell: ContainerSession) -> None:
    found = await shell.run("(setsid sleep 7771 &) ; sleep 7771", Limits(wall_s=0.3, grace_s=0.05))
    assert found.outcome is Outcome.TIMED_OUT
    assert not shell.alive
    assert not running(b"7771")


def running(word: bytes) -> list[int]:
    """Pids of this host with a word in their command line."""
    found: list[int] = []
    for place in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if word in (place / "cmdline").read_bytes():
                found.append(int(place.name))
    return found


async def test_a_terminal_has_its_size_and_interrupts_what_is_in_front() -> None:
    heard = Heard()
    script = "trap 'stty size; exit 5' INT; stty size; while :; do sleep .05; done"
    spec = SessionSpec(("sh", "-c", script), terminal=True, rows=30, columns=100)
    session = await opened(spec, heard)
    await heard.until(b"30 100")
    await session.resize(40, 120)
    await session.write(b"\x03")
    assert (await session.wait()).exit_code == 5
    assert b"40 120" in heard.text
    await session.close()


async def test_a_program_that_cannot_start_says_why() -> None:
    for argv, reason in ((("no-such-program",), "No such file"), (("/",), "denied")):
        with pytest.raises(Rejected, match=reason):
            await opened(SessionSpec(argv))


async def test_a_reader_that_does_not_read_holds_the_program_and_no_other_news() -> None:
    gate = asyncio.Event()
    taken = 0

    async def slow(_: Stream, data: bytes) -> None:
        nonlocal taken
        taken += len(data)
        await gate.wait()

    session = await opened(SessionSpec(("sh", "-c", "cat /dev/zero")), slow)
    await eventually(lambda: taken > 0)
    await session.signal(signal.SIGKILL)  # heard although its output is not
    async with asyncio.timeout(WAIT_S):
        await asyncio.wait({session._ended})
    buffered = session._flows["stdout"].buffer.total
    assert buffered <= keeper.CREDIT + (2 << 20)  # credit, and what lay in the pipe at the end
    gate.set()
    assert (await session.wait()).signal == signal.SIGKILL
    assert taken == buffered
    await session.close()


async def test_who_types_waits_for_who_reads_until_the_session_ends() -> None:
    session = await opened(SessionSpec(("sleep", "7772"), stdin=True))
    typing = asyncio.create_task(session.write(b"x" * (4 << 20)))
    await session.signal(signal.SIGTERM)
    with pytest.raises(Unavailable, match="ended"):
        await typing
    await session.close()


async def test_a_keeper_that_is_killed_is_a_session_that_died(shell: ContainerSession) -> None:
    lasting = asyncio.create_task(shell.run("sleep 7773", LIMITS))
    await eventually(lambda: running(b"7773"))
    for pid in shell.ours:
        os.kill(pid, signal.SIGKILL)
    assert (await lasting).outcome is Outcome.SANDBOX_DIED
    for pid in running(b"7773"):  # what it kept is nobody's any more
        os.kill(pid, signal.SIGKILL)


class Scripted:
    """A program of the agent's making: it says what the test puts in."""

    def __init__(self) -> None:
        self.chunks: asyncio.Queue[tuple[Stream, bytes] | None] = asyncio.Queue()
        self.ended: asyncio.Future[int | None] = asyncio.get_running_loop().create_future()

    def say(self, message: Mapping[str, Any]) -> None:
        self.chunks.put_nowait((Stream.STDOUT, wire.encode(dict(message))))

    async def read(self) -> tuple[Stream, bytes] | None:
        return await self.chunks.get()

    async def write(self, data: bytes) -> None: ...

    async def finish_input(self) -> None:
        self.chunks.put_nowait(None)

    async def close(self) -> None: ...


@pytest.mark.parametrize(
    "event",
    [
        {"event": "no such thing"},
        {"no": "event"},
        {"event": "output", "stream": "elsewhere", "data": ""},
        {"event": "output", "stream": "stdout", "data": "not base 64!"},
        {"event": "output", "stream": ["stdout"], "data": ""},
        {"event": "typed", "to": "nobody", "bytes": 1},
        {"event": "status", "status": "many"},
        {"event": "exited", "status": None},
    ],
)
async def test_nonsense_of_a_keeper_ends_its_session_and_nothing_else(event: dict[str, Any]) -> None:
    program = Scripted()
    session = ContainerSession(Here(), Line(program, b""), "s1", SessionSpec(), None, verdict)
    program.say({"event": "started", "pid": 7, "ours": [6]})
    await session.start()
    program.say(event)
    assert (await session.wait()).outcome is Outcome.SANDBOX_DIED
    assert (await session.run("true", LIMITS)).outcome is Outcome.SANDBOX_DIED
    await session.close()


async def test_keys_are_signals_only_as_the_terminal_is_set() -> None:
    ours, theirs = os.openpty()
    try:
        assert keys.split(ours, b"ab\x03c\x1a") == [b"ab", signal.SIGINT, b"c", signal.SIGTSTP]
        modes = termios.tcgetattr(theirs)
        modes[3] &= ~termios.ISIG
        termios.tcsetattr(theirs, termios.TCSANOW, modes)
        assert keys.split(ours, b"ab\x03c") == [b"ab\x03c"]
    finally:
        os.close(ours)
        os.close(theirs)


LED = """
import os, signal, sys
from temper.sandbox.engine.guest import keys, starting
ours, theirs = os.openpty()
reading, orders = os.pipe()
script = "trap 'exit 5' INT; echo ready; while :; do sleep .05; done"
start = starting.Start(["sh", "-c", script], dict(os.environ), "")
leader, told = starting.spawn(lambda telling: starting.become_led(start, theirs, reading, telling))
pid, reason = keys.heard(told)
text = b""
while b"ready" not in text:
    text += os.read(ours, 100)
os.write(orders, bytes([signal.SIGINT]))
status = os.waitstatus_to_exitcode(os.waitpid(leader, 0)[1])
print(pid not in {0, leader}, repr(reason), status, keys.kernel_sends())
"""


async def test_a_leader_passes_signals_to_who_is_in_front_and_ends_as_the_program() -> None:
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-c", LED), stdout=asyncio.subprocess.PIPE, stdin=asyncio.subprocess.DEVNULL
    )
    async with asyncio.timeout(WAIT_S):
        said, _ = await process.communicate()
    assert said == b"True '' 5 True\n"


@pytest.mark.parametrize("told", [b"\0\7\0\0\0No such file", b"No such file\0\7\0\0\0"])
def test_a_leader_and_its_program_may_tell_in_either_order(told: bytes) -> None:
    assert keys.heard(told) == (7, "No such file")
    assert keys.heard(b"denied") == (0, "denied")


def row(pid: int, parent: int) -> ProcessInfo:
    return ProcessInfo(pid, parent, ("x",), "S")


def test_processes_are_of_the_session_below_whose_keeper_they_are() -> None:
    found = Listed([row(5, 1), row(6, 5), row(7, 6), row(8, 1)], {})
    told = {each.pid: each.session for each in of_sessions(found, {5: "s1"})}
    assert told == {6: "s1", 7: "s1", 8: ""}


def test_where_there_are_marks_an_orphan_is_of_the_session_that_started_it() -> None:
    found = Listed([row(5, 1), row(8, 1), row(9, 1)], {5: keeper.MARKS + 1, 8: keeper.MARKS + 1, 9: 1000})
    told = {each.pid: each.session for each in of_sessions(found, {5: "s1"})}
    assert told == {8: "s1", 9: ""}


async def test_who_is_spared_is_spared_with_all_below() -> None:
    session = await opened(SessionSpec(("sh", "-c", "sleep 7774 & wait")))
    members = [str(pid) for pid in running(b"")]
    own = census.agents(members, os.getuid(), frozenset())
    left = census.agents(members, os.getuid(), session.ours)
    assert {*session.ours, session.pid} <= set(own)
    assert not {*session.ours, session.pid} & set(left)
    assert os.getpid() in left
    assert census.agents(members, 4_000_000, frozenset()) == []
    await session.close()


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as probe:
        return int(probe.getsockname()[1])


async def test_what_connects_inside_comes_out_of_the_door_whole_and_both_ways() -> None:
    port = free_port()
    door, listener = await Door.open(Here(), port)

    async def upper(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write((await reader.read()).upper())
        writer.close()

    listener.setblocking(False)
    async with await asyncio.start_server(upper, sock=listener):
        sent = b"abc" * forwarder.CREDIT
        for _ in range(2):
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(sent)
            writer.write_eof()
            async with asyncio.timeout(WAIT_S):
                assert await reader.read() == sent.upper()
            writer.close()
    assert door.shut
    await door.close()
    with pytest.raises(ConnectionRefusedError):
        await asyncio.open_connection("127.0.0.1", port)


async def test_a_port_that_is_taken_has_no_door() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken, pytest.raises(Unavailable, match="in use"):
        await Door.open(Here(), taken.getsockname()[1])


@pytest.mark.parametrize(
    "event",
    [
        {"event": "opened", "id": 1},
        {"event": "opened", "id": "x"},
        {"event": "data", "id": 1, "data": "A" * (forwarder.CREDIT * 2)},
        {"event": "data", "id": 1, "data": ""},
        {"event": "no such thing", "id": 1},
        {"event": "took", "id": 1, "bytes": "many"},
    ],
)
async def test_nonsense_of_a_forwarder_closes_the_door(event: dict[str, Any]) -> None:
    program = Scripted()
    door = Door(Line(program, b""))
    program.say({"event": "opened", "id": 1})
    program.say(event)
    await eventually(lambda: door.lost)
    await door.close()


async def test_more_connections_than_a_forwarder_holds_are_nonsense() -> None:
    program = Scripted()
    door = Door(Line(program, b""))
    for number in range(forwarder.MOST):
        program.say({"event": "opened", "id": number})
    program.say({"event": "closed", "id": 0})
    program.say({"event": "opened", "id": 1000})
    await eventually(program.chunks.empty)
    assert not door.lost
    program.say({"event": "opened", "id": 1001})
    await eventually(lambda: door.lost)
    await door.close()
