"""Programs that outlive a call: shells that remember, terminals, servers, and what streams out of them."""

import asyncio
import signal
from collections.abc import Callable
from dataclasses import replace

import pytest
from tests.conformance.sandbox.conftest import LIMITS

from temper.runtime.errors import Rejected, Unavailable
from temper.runtime.testing import eventually
from temper.sandbox.engine.base import (
    Backend,
    Command,
    CommandResult,
    Outcome,
    ProcessInfo,
    Sandbox,
    Session,
    SessionSpec,
    Stream,
)

pytestmark = pytest.mark.asyncio(loop_scope="module")
WAIT_S = 60.0


class Heard:
    """A sink that keeps what it is given, and can be waited on."""

    def __init__(self) -> None:
        self.chunks: list[tuple[Stream, bytes]] = []
        self._news = asyncio.Event()

    async def __call__(self, stream: Stream, data: bytes) -> None:
        self.chunks.append((stream, data))
        self._news.set()

    def text(self, stream: Stream = Stream.STDOUT) -> bytes:
        return b"".join(data for each, data in self.chunks if each is stream)

    async def until(self, said: bytes) -> bytes:
        async with asyncio.timeout(WAIT_S):
            while said not in self.text():
                self._news.clear()
                await self._news.wait()
        return self.text()


@pytest.fixture(autouse=True)
def _sessions(backend: Backend) -> None:
    if not (backend.capabilities.sessions and backend.capabilities.programs):
        pytest.skip("this backend declares no sessions")


@pytest.fixture
def terminals(backend: Backend) -> None:
    if not backend.capabilities.terminals:
        pytest.skip("this backend declares no terminals")


async def until_listed(sandbox: Sandbox, wanted: Callable[[list[ProcessInfo]], bool]) -> list[ProcessInfo]:
    found: list[ProcessInfo] = []

    async def listed() -> bool:
        found[:] = await sandbox.list_processes()
        return wanted(found)

    await eventually(listed)
    return found


def sleeps(found: list[ProcessInfo], seconds: str) -> list[ProcessInfo]:
    return [each for each in found if each.argv[-2:] == ("sleep", seconds)]


async def test_a_shell_remembers_its_directory_and_variables(sandbox: Sandbox) -> None:
    shell = await sandbox.open_session(SessionSpec())
    first = await shell.run("mkdir -p deep && cd deep && A=7 && export B=8", LIMITS)
    assert (first.outcome, first.exit_code, first.stdout) == (Outcome.OK, 0, b"")
    assert (await shell.run('echo "$A $B ${PWD##*/}"', LIMITS)).stdout == b"7 8 deep\n"


@pytest.mark.parametrize("code", [0, 1, 7, 126, 127, 255])
async def test_the_exit_status_of_a_script_is_exact(sandbox: Sandbox, code: int) -> None:
    shell = await sandbox.open_session(SessionSpec())
    assert (await shell.run(f"(exit {code})", LIMITS)).exit_code == code
    assert (await shell.run("true", LIMITS)).exit_code == 0


async def test_a_script_of_many_lines_and_quotes_arrives_as_it_is(sandbox: Sandbox) -> None:
    shell = await sandbox.open_session(SessionSpec())
    script = "cat <<'END'\n$HOME `id` \\ ' \"\n\n  end\nEND\nprintf '%s' \"it's\""
    assert (await shell.run(script, LIMITS)).stdout == b"$HOME `id` \\ ' \"\n\n  end\nit's"


async def test_a_script_that_ends_the_shell_gives_its_status(sandbox: Sandbox) -> None:
    shell = await sandbox.open_session(SessionSpec())
    assert (await shell.run("echo bye; exit 3", LIMITS)).exit_code == 3
    assert not shell.alive
    assert (await shell.run("true", LIMITS)).outcome is Outcome.SANDBOX_DIED


async def test_a_shell_reads_nothing_unless_asked_to(sandbox: Sandbox) -> None:
    shell = await sandbox.open_session(SessionSpec())
    assert (await shell.run("read x; echo $?", LIMITS)).stdout == b"1\n"


async def test_a_server_in_the_background_returns_at_once_and_lives(sandbox: Sandbox) -> None:
    shell = await sandbox.open_session(SessionSpec())
    result = await shell.run("sleep 601 & echo started", LIMITS)
    assert (result.outcome, result.stdout) == (Outcome.OK, b"started\n")
    found = sleeps(await until_listed(sandbox, lambda rows: bool(sleeps(rows, "601"))), "601")
    assert [each.session for each in found] == [shell.id]


async def test_sessions_are_independent_of_each_other(sandbox: Sandbox) -> None:
    shells = [await sandbox.open_session(SessionSpec()) for _ in range(3)]

    async def meet(shell: Session, index: int) -> CommandResult:
        # Each waits for the file of the next one, so they end only if all three run at once.
        script = f"touch m{index}; while [ ! -e m{(index + 1) % 3} ]; do sleep .01; done; echo {index}"
        return await shell.run(script, LIMITS)

    results = await asyncio.gather(*(meet(shell, index) for index, shell in enumerate(shells)))
    assert [each.stdout for each in results] == [b"0\n", b"1\n", b"2\n"]


async def test_a_limit_ends_one_session_with_its_whole_tree_and_no_other(sandbox: Sandbox) -> None:
    late, other = [await sandbox.open_session(SessionSpec()) for _ in range(2)]
    await other.run("sleep 602 &", LIMITS)
    result = await late.run("setsid sleep 603 & (setsid sleep 603 &); sleep 603", replace(LIMITS, wall_s=0.3))
    assert result.outcome is Outcome.TIMED_OUT
    assert not late.alive
    found = await until_listed(sandbox, lambda rows: len(sleeps(rows, "602")) == 1)
    assert not sleeps(found, "603")
    assert (await other.run("echo on", LIMITS)).stdout == b"on\n"


async def test_a_late_command_outside_leaves_the_sessions_alone(sandbox: Sandbox) -> None:
    shell = await sandbox.open_session(SessionSpec())
    await shell.run("A=1", LIMITS)
    await sandbox.execute(Command(("sh", "-c", "sleep 604 & sleep 604")), replace(LIMITS, wall_s=0.2))
    assert not sleeps(await sandbox.list_processes(), "604")
    assert (await shell.run("echo $A", LIMITS)).stdout == b"1\n"


async def test_a_closed_session_takes_its_tree_along(sandbox: Sandbox) -> None:
    shell = await sandbox.open_session(SessionSpec())
    await shell.run("(setsid sleep 605 &) ; sleep 605 &", LIMITS)
    await shell.close()
    await shell.close()
    assert not sleeps(await sandbox.list_processes(), "605")


async def test_quiescing_ends_every_session(sandbox: Sandbox) -> None:
    shell = await sandbox.open_session(SessionSpec())
    await shell.run("sleep 606 &", LIMITS)
    await sandbox.quiesce()
    assert not await sandbox.list_processes()
    assert (await shell.wait()).outcome is Outcome.SANDBOX_DIED


async def test_a_program_is_typed_to_and_says_how_it_ended(sandbox: Sandbox) -> None:
    heard = Heard()
    session = await sandbox.open_session(
        SessionSpec(("sh", "-c", "read x; echo got $x; exit 4"), stdin=True), heard
    )
    await session.write(b"seven\n")
    result = await session.wait()
    assert (result.exit_code, result.stdout) == (4, b"got seven\n")
    assert heard.text() == b"got seven\n"
    await session.close()


async def test_what_was_not_asked_for_is_refused(sandbox: Sandbox) -> None:
    session = await sandbox.open_session(SessionSpec(("sleep", "607")))
    for refused in (
        session.write(b"x"),
        session.resize(2, 2),
        session.run("true", LIMITS),
        session.signal(0),
    ):
        with pytest.raises(Rejected):
            await refused
    with pytest.raises(Rejected, match="No such file"):
        await sandbox.open_session(SessionSpec(("no-such-program",)))
    await session.close()


async def test_a_signal_is_the_end_that_is_told(sandbox: Sandbox) -> None:
    session = await sandbox.open_session(SessionSpec(("sleep", "608")))
    await session.signal(signal.SIGTERM)
    assert (await session.wait()).signal == signal.SIGTERM
    await session.close()


async def test_processes_are_listed_as_they_are_and_signalled_by_number(sandbox: Sandbox) -> None:
    await sandbox.execute(Command(("sh", "-c", "sleep 609 &")), LIMITS)
    found = await until_listed(sandbox, lambda rows: len(sleeps(rows, "609")) == 1)
    sleeper = sleeps(found, "609")[0]
    assert sleeper.state in "SR"
    assert sleeper.session == ""
    await sandbox.signal(sleeper.pid, signal.SIGKILL)
    await until_listed(sandbox, lambda rows: not rows)
    with pytest.raises(Rejected, match="no process"):
        await sandbox.signal(sleeper.pid, signal.SIGKILL)
    with pytest.raises(Rejected, match="no process"):
        await sandbox.signal(1, signal.SIGKILL)


async def test_a_terminal_is_one_and_has_the_size_it_was_given(sandbox: Sandbox, terminals: None) -> None:
    heard = Heard()
    spec = SessionSpec(
        ("sh", "-c", "test -t 0 && test -t 1 && echo tty; stty size; read x; stty size"), terminal=True
    )
    session = await sandbox.open_session(replace(spec, rows=30, columns=100), heard)
    await heard.until(b"30 100")
    await session.resize(40, 120)
    await session.write(b"\n")
    assert b"40 120" in await heard.until(b"40 120")
    assert b"tty\r\n" in heard.text()
    assert (await session.wait()).exit_code == 0
    await session.close()


async def test_control_c_on_a_terminal_interrupts_what_is_in_front(sandbox: Sandbox, terminals: None) -> None:
    heard = Heard()
    script = "trap 'echo caught; exit 5' INT; echo ready; while :; do sleep .05; done"
    session = await sandbox.open_session(SessionSpec(("sh", "-c", script), terminal=True), heard)
    await heard.until(b"ready")
    await session.write(b"\x03")
    assert (await session.wait()).exit_code == 5
    assert b"caught" in heard.text()
    await session.close()


async def test_escape_sequences_and_invalid_bytes_stay_as_they_are(sandbox: Sandbox, terminals: None) -> None:
    session = await sandbox.open_session(
        SessionSpec(("printf", r"\033[?2004h\377\033]3008;x\007."), terminal=True)
    )
    assert (await session.wait()).stdout == b"\x1b[?2004h\xff\x1b]3008;x\x07."
    await session.close()


async def test_output_streams_while_the_program_runs(sandbox: Sandbox) -> None:
    heard = Heard()
    script = "echo one; while [ ! -e go ]; do sleep .01; done; echo two >&2"
    running = asyncio.create_task(sandbox.execute(Command(("sh", "-c", script)), LIMITS, heard))
    await heard.until(b"one\n")
    await sandbox.put_file("/work/go", b"")
    assert (await running).stdout == b"one\n"
    assert heard.text(Stream.STDERR) == b"two\n"


async def test_a_slow_reader_holds_the_program_back(sandbox: Sandbox) -> None:
    gate = asyncio.Event()
    taken = 0

    async def slow(_: Stream, data: bytes) -> None:
        nonlocal taken
        taken += len(data)
        await gate.wait()

    program = (
        "import os\nfor i in range(400):\n    os.write(1, b'x' * 65536)\n    open('n', 'w').write(str(i))\n"
    )
    command = Command(("python3", "-S", "-c", program))
    running = asyncio.create_task(sandbox.execute(command, LIMITS, slow))
    await eventually(lambda: taken > 0)
    before = taken
    await sandbox.list_processes()  # others are served meanwhile
    assert taken == before
    gate.set()
    result = await running
    assert (taken, result.truncated, result.exit_code) == (400 * 65536, True, 0)


async def test_a_sink_that_fails_does_not_hold_the_program(sandbox: Sandbox) -> None:
    async def broken(_: Stream, __: bytes) -> None:
        raise Unavailable("nobody listens")

    with pytest.raises(Unavailable, match="nobody listens"):
        await sandbox.execute(Command(("sh", "-c", "seq 100000; touch done")), LIMITS, broken)
    assert await sandbox.get_file("/work/done", 1) == (b"", False)


async def test_orphans_of_sessions_and_commands_are_reaped(sandbox: Sandbox) -> None:
    shell = await sandbox.open_session(SessionSpec())
    for _ in range(20):
        await shell.run("for i in 1 2 3 4 5; do (true &) ; (true &); done", LIMITS)
        await sandbox.execute(Command(("sh", "-c", "for i in 1 2 3 4 5; do (setsid true &); done")), LIMITS)
    await until_listed(sandbox, lambda rows: all(row.pid == shell.pid for row in rows))
