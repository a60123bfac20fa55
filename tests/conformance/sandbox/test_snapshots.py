"""Snapshots of files: fork, restore, and what differs between forks."""

import asyncio
from dataclasses import replace

import pytest
from tests.conformance.sandbox.conftest import LIMITS, SLOTS

from temper.runtime.errors import Exhausted, Rejected
from temper.sandbox.engine.base import Backend, Command, Isolation, Sandbox, SessionSpec
from temper.sandbox.engine.entries import EntryKind

pytestmark = pytest.mark.asyncio(loop_scope="module")


@pytest.fixture(autouse=True)
def _snapshots(backend: Backend) -> None:
    if "files" not in backend.capabilities.snapshots:
        pytest.skip("this backend declares no snapshots of files")


async def test_a_restored_sandbox_has_the_files_of_then_and_nothing_else(
    sandbox: Sandbox, backend: Backend
) -> None:
    await sandbox.put_file("/work/a", b"then", 0o640)
    await sandbox.put_file("/work/d/b", b"\x00\xff")
    taken = await sandbox.snapshot()
    await sandbox.put_file("/work/a", b"now")
    await sandbox.put_file("/work/new", b"")
    await sandbox.python("name = 1", LIMITS)
    for _ in range(2):
        await sandbox.restore(taken)
        assert await sandbox.get_file("/work/a", 9) == (b"then", False)
        assert await sandbox.get_file("/work/d/b", 9) == (b"\x00\xff", False)
        with pytest.raises(Rejected):
            await sandbox.get_file("/work/new", 9)
        assert (await sandbox.python("name", LIMITS)).error is not None
    await backend.forget(taken)


async def test_owners_modes_and_links_survive(sandbox: Sandbox, programs: None) -> None:
    script = "umask 077; mkdir d; echo 1 > d/f; ln -s /etc/passwd d/l; chmod 700 d; chmod 500 d/f"
    await sandbox.execute(Command(("sh", "-c", script)), LIMITS)
    await sandbox.restore(await sandbox.snapshot())
    modes = await sandbox.python("import os\n[oct(os.stat(p).st_mode & 0o777) for p in ('d', 'd/f')]", LIMITS)
    assert modes.stdout == b"['0o700', '0o500']\n"
    said = await sandbox.execute(Command(("sh", "-c", "readlink d/l; cat d/f; echo 2 >> d/new")), LIMITS)
    assert said.stdout == b"/etc/passwd\n1\n"
    assert said.exit_code == 0
    owner = await sandbox.execute(Command(("sh", "-c", "test -O d && test -O d/f && echo mine")), LIMITS)
    assert owner.stdout == b"mine\n"
    assert (await sandbox.stat("/work/d/l")).kind is EntryKind.LINK


async def test_forks_begin_alike_and_go_their_own_ways(sandbox: Sandbox, backend: Backend) -> None:
    await sandbox.put_file("/work/a", b"1")
    taken = await sandbox.snapshot()
    forks = await backend.fork(taken, [f"f{index}" for index in range(3)], LIMITS)
    made = [fork.sandbox for fork in forks if fork.sandbox is not None]
    assert len(made) == 3
    await made[0].put_file("/work/a", b"2")
    assert [(await each.get_file("/work/a", 9))[0] for each in (*made, sandbox)] == [b"2", b"1", b"1", b"1"]
    for each in made:
        await each.destroy()
    await backend.forget(taken)


async def test_each_fork_has_an_outcome_of_its_own(sandbox: Sandbox, backend: Backend) -> None:
    taken = await sandbox.snapshot()
    forks = await backend.fork(taken, [f"f{index}" for index in range(SLOTS)], LIMITS)
    made = [fork.sandbox for fork in forks if fork.sandbox is not None]
    assert len(made) == SLOTS - 1  # one place is the sandbox that was forked
    assert [fork.error for fork in forks if fork.sandbox is None] == [f"all {SLOTS} sandboxes are taken"]
    for each in made:
        await each.destroy()


@pytest.mark.usefixtures("sessions")
async def test_forks_differ_in_everything_random(sandbox: Sandbox, backend: Backend, programs: None) -> None:
    await sandbox.python("import random; random.random()", LIMITS)
    taken = await sandbox.snapshot()
    forks = await backend.fork(taken, ["a", "b", "c", "d"], LIMITS)
    made = [fork.sandbox for fork in forks if fork.sandbox is not None]
    code = "import os, random, uuid\n(os.urandom(8), random.random(), uuid.uuid4(), uuid.uuid1())"
    said = [(await each.python(code, LIMITS)).stdout for each in made]
    assert len(set(said)) == len(made) == 4
    shells = [await each.open_session(SessionSpec()) for each in made]
    drawn = await asyncio.gather(*(shell.run("echo $RANDOM$RANDOM$RANDOM", LIMITS) for shell in shells))
    if any(result.stdout.strip() for result in drawn):
        assert len({result.stdout for result in drawn}) == len(made)
    for each in made:
        await each.destroy()


@pytest.mark.usefixtures("sessions")
async def test_a_snapshot_is_not_torn_by_what_runs_meanwhile(
    sandbox: Sandbox, backend: Backend, programs: None
) -> None:
    if backend.capabilities.isolation < Isolation.NAMESPACE:
        pytest.skip(f"this backend declares isolation {backend.capabilities.isolation.name}")
    writer = "i=0; while :; do i=$((i+1)); echo $i > a; echo $i > b; done"
    session = await sandbox.open_session(SessionSpec(("sh", "-c", writer)))
    code = "import time\nwhile not __import__('os').path.exists('b'): time.sleep(.01)"
    await sandbox.python(code, LIMITS)
    taken = await sandbox.snapshot()
    assert session.alive
    await sandbox.restore(taken)
    first, second = [int((await sandbox.get_file(f"/work/{name}", 99))[0] or b"-1") for name in "ab"]
    assert -1 in {first, second} or first - second in {0, 1}


async def test_holes_and_depth_cannot_fill_the_host(
    sandbox: Sandbox, backend: Backend, programs: None
) -> None:
    if "disk_bytes" not in backend.capabilities.enforced:
        pytest.skip("this backend does not declare that it enforces disk_bytes")
    await sandbox.execute(Command(("truncate", "-s", "200M", "hole")), LIMITS)
    with pytest.raises(Exhausted, match="room"):
        await sandbox.snapshot()
    with pytest.raises(Rejected, match="holes"):
        _ = [chunk async for chunk in sandbox.get_tree("/work")]
    await sandbox.remove("/work/hole")
    code = "import os\nfor _ in range(300):\n    os.mkdir('d')\n    os.chdir('d')"
    await sandbox.python(code, LIMITS)
    with pytest.raises(Rejected, match="within each other"):
        await sandbox.snapshot()
    with pytest.raises(Rejected, match="deeply"):
        _ = [chunk async for chunk in sandbox.get_tree("/work")]
    with pytest.raises(Rejected, match="within each other"):
        await sandbox.remove("/work/d", recursive=True)
    assert (await sandbox.execute(Command(("rm", "-r", "/work/d")), LIMITS)).exit_code == 0
    await sandbox.snapshot()


async def test_an_unknown_or_forgotten_snapshot_is_refused(sandbox: Sandbox, backend: Backend) -> None:
    taken = await sandbox.snapshot()
    await backend.forget(taken)
    await backend.forget(taken)
    for refused in (sandbox.restore(taken), backend.fork(taken, ["x"], LIMITS), sandbox.restore("../../etc")):
        with pytest.raises(Rejected, match="no snapshot"):
            await refused


async def test_a_fork_has_bounds(sandbox: Sandbox, backend: Backend) -> None:
    taken = await sandbox.snapshot()
    too_many = [f"n{index}" for index in range(backend.capabilities.max_fork + 1)]
    for names in ([], too_many):
        with pytest.raises(Rejected, match="fork"):
            await backend.fork(taken, names, LIMITS)


async def test_a_smaller_fork_that_cannot_hold_the_files_says_so(sandbox: Sandbox, backend: Backend) -> None:
    if "disk_bytes" not in backend.capabilities.enforced:
        pytest.skip("this backend does not declare that it enforces disk_bytes")
    await sandbox.put_file("/work/a", bytes(2 << 20))
    taken = await sandbox.snapshot()
    fork = (await backend.fork(taken, ["small"], replace(LIMITS, disk_bytes=1 << 20)))[0]
    assert fork.sandbox is None
    assert "full" in fork.error
