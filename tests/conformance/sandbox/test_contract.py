"""What every backend does alike."""

import asyncio
import os
from dataclasses import replace

import pytest
from tests.conformance.sandbox import page
from tests.conformance.sandbox.conftest import ALL, LIMITS, SLOTS

from temper.runtime.errors import Exhausted, Rejected
from temper.sandbox.engine.base import Backend, Command, Limits, Outcome, Sandbox, SessionSpec

BACKENDS = ALL
pytestmark = pytest.mark.asyncio(loop_scope="module")


async def test_the_value_of_a_trailing_expression_is_printed(sandbox: Sandbox) -> None:
    result = await sandbox.python("x = 6\nx * 7", LIMITS)
    assert (result.outcome, result.stdout, result.error) == (Outcome.OK, b"42\n", None)


async def test_the_guide_says_what_the_backend_says(backend: Backend) -> None:
    has = backend.capabilities
    if os.geteuid() != 0 or (
        has.cgroup_mode == "none" and has.backend in {"namespaces", "bubblewrap", "gvisor"}
    ):
        pytest.skip("the guide's table is that of a host with root and control groups")
    assert page.HEAD in page.GUIDE.read_text()
    assert page.row(has) in page.GUIDE.read_text()


async def test_a_declared_session_is_there(sandbox: Sandbox, programs: None, sessions: None) -> None:
    shell = await sandbox.open_session(SessionSpec())
    await shell.run("cd /; A=7", LIMITS)
    found = await shell.run('echo "$A $PWD"; (exit 9)', LIMITS)
    assert (found.exit_code, found.stdout) == (9, b"7 /\n")
    terminal = await sandbox.open_session(SessionSpec(("stty", "size"), terminal=True, rows=7))
    assert (await terminal.wait()).stdout == b"7 80\r\n"
    assert {each.session for each in await sandbox.list_processes()} == {shell.id}
    for each in (terminal, shell):
        await each.close()


async def test_a_string_is_shown_as_a_repl_shows_it(sandbox: Sandbox) -> None:
    assert (await sandbox.python("'a'", LIMITS)).stdout == b"'a'\n"


async def test_none_is_not_shown(sandbox: Sandbox) -> None:
    assert (await sandbox.python("print('a')", LIMITS)).stdout == b"a\n"


async def test_names_persist_from_call_to_call(sandbox: Sandbox) -> None:
    await sandbox.python("a = 20", LIMITS)
    assert (await sandbox.python("a + 1", LIMITS)).stdout == b"21\n"


async def test_an_exception_is_a_short_text_and_no_failure_of_the_sandbox(sandbox: Sandbox) -> None:
    result = await sandbox.python("1 // 0", LIMITS)
    assert result.outcome is Outcome.OK
    assert result.error is not None
    assert result.error.startswith("ZeroDivisionError: ")
    assert "Traceback" not in result.error
    assert (await sandbox.python("1", LIMITS)).stdout == b"1\n"


async def test_bad_syntax_is_a_short_text(sandbox: Sandbox) -> None:
    result = await sandbox.python("(", LIMITS)
    assert result.error is not None
    assert result.error.startswith("SyntaxError: ")


async def test_a_program_gets_its_arguments_as_they_are(sandbox: Sandbox) -> None:
    result = await sandbox.execute(Command(("echo", "$HOME;", "`id`")), LIMITS)
    assert result.stdout == b"$HOME; `id`\n"


async def test_a_program_reads_what_was_given_as_input(sandbox: Sandbox) -> None:
    assert (await sandbox.execute(Command(("cat",), stdin=b"abc"), LIMITS)).stdout == b"abc"


async def test_an_exit_code_is_no_outcome(sandbox: Sandbox) -> None:
    result = await sandbox.execute(Command(("false",)), LIMITS)
    assert (result.outcome, result.exit_code) == (Outcome.OK, 1)


async def test_a_missing_program_is_the_agents_error(sandbox: Sandbox) -> None:
    result = await sandbox.execute(Command(("no-such-program",)), LIMITS)
    assert result.outcome is Outcome.OK
    assert result.error == "No such file or directory"


async def test_a_late_command_is_timed_out_with_evidence(sandbox: Sandbox) -> None:
    result = await sandbox.execute(Command(("sleep", "600")), replace(LIMITS, wall_s=0.2))
    assert result.outcome is Outcome.TIMED_OUT
    assert result.evidence.wall_s >= 0.2


async def test_a_sandbox_works_on_after_a_limit(sandbox: Sandbox) -> None:
    await sandbox.execute(Command(("sleep", "600")), replace(LIMITS, wall_s=0.1))
    assert (await sandbox.execute(Command(("echo", "on")), LIMITS)).stdout == b"on\n"
    assert (await sandbox.python("2 + 2", LIMITS)).stdout == b"4\n"


async def test_long_output_keeps_head_and_tail_and_says_so(sandbox: Sandbox) -> None:
    result = await sandbox.python("print('h' + 'x' * 100000 + 't')", LIMITS)
    assert result.truncated
    assert result.outcome is Outcome.OUTPUT_TRUNCATED
    assert result.stdout.startswith(b"hx")
    assert result.stdout.endswith(b"xt\n")
    assert len(result.stdout) < LIMITS.output_bytes + 64


async def test_a_file_comes_out_as_it_went_in(sandbox: Sandbox) -> None:
    await sandbox.put_file("/work/deep/er/name", b"\x00\xff")
    assert await sandbox.get_file("/work/deep/er/name", 10) == (b"\x00\xff", False)
    assert await sandbox.get_file("deep/er/name", 1) == (b"\x00", True)


async def test_a_file_named_like_an_option_is_a_file(sandbox: Sandbox) -> None:
    await sandbox.put_file("/work/--x", b"1")
    assert await sandbox.get_file("/work/--x", 10) == (b"1", False)


@pytest.mark.parametrize(
    "path", ["../etc/passwd", "/work/../../etc/passwd", "/etc/passwd", "/", "/work", "/work/a/.."]
)
async def test_a_path_out_of_the_sandbox_is_refused(sandbox: Sandbox, path: str) -> None:
    with pytest.raises(Rejected, match="path"):
        await sandbox.put_file(path, b"")
    with pytest.raises(Rejected, match="path"):
        await sandbox.get_file(path, 10)


async def test_a_missing_file_is_the_callers_mistake(sandbox: Sandbox) -> None:
    with pytest.raises(Rejected, match="no such file"):
        await sandbox.get_file("/work/none", 10)


async def test_a_reset_sandbox_is_as_new(sandbox: Sandbox) -> None:
    await sandbox.put_file("/work/a", b"1")
    await sandbox.python("secret = 1", LIMITS)
    await sandbox.reset()
    with pytest.raises(Rejected):
        await sandbox.get_file("/work/a", 10)
    assert (await sandbox.python("secret", LIMITS)).error is not None
    assert (await sandbox.python("3", LIMITS)).stdout == b"3\n"


async def test_a_destroyed_sandbox_runs_nothing(backend: Backend) -> None:
    sandbox = await backend.create("gone", LIMITS)
    await sandbox.destroy()
    await sandbox.destroy()
    assert not sandbox.alive
    assert (await sandbox.python("1", LIMITS)).outcome is Outcome.SANDBOX_DIED
    assert (await sandbox.execute(Command(("true",)), LIMITS)).outcome is Outcome.SANDBOX_DIED


async def test_two_sandboxes_know_nothing_of_each_other(backend: Backend, sandbox: Sandbox) -> None:
    other = await backend.create("other", LIMITS)
    try:
        await sandbox.python("mine = 1", LIMITS)
        await sandbox.put_file("/work/mine", b"1")
        assert (await other.python("mine", LIMITS)).error is not None
        with pytest.raises(Rejected):
            await other.get_file("/work/mine", 10)
    finally:
        await other.destroy()


async def test_sandboxes_run_side_by_side(backend: Backend) -> None:
    made = [await backend.create(f"n{index}", LIMITS) for index in range(3)]
    results = await asyncio.gather(*(each.python(f"{index} + 1", LIMITS) for index, each in enumerate(made)))
    assert [result.stdout for result in results] == [b"1\n", b"2\n", b"3\n"]
    for each in made:
        await each.destroy()


async def test_a_full_host_says_so_and_a_freed_slot_serves_again(backend: Backend) -> None:
    made = [await backend.create(f"n{index}", LIMITS) for index in range(SLOTS)]
    with pytest.raises(Exhausted, match="taken"):
        await backend.create("one more", LIMITS)
    for each in made:
        await each.destroy()
    await (await backend.create("again", LIMITS)).destroy()


async def test_a_network_it_has_not_is_refused(backend: Backend) -> None:
    with pytest.raises(Rejected, match="network"):
        await backend.create("net", Limits(), "wormhole")
