"""Sessions over the fake backend, on a clock that only the test moves."""

import asyncio
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tests.unit.sandbox.worlds import LIMITS, world

from temper.runtime.errors import Exhausted, Rejected, Stale, Unavailable
from temper.sandbox.egress.policy import Mode, Policy, Rule
from temper.sandbox.engine.base import CommandResult, Evidence, Limits, Outcome, Sandbox
from temper.sandbox.engine.fake import FakeBackend
from temper.sandbox.host import SandboxHost
from temper.sandbox.phases import Asker, End
from temper.sandbox.tenancy import Purpose

NOBODY = Purpose("job-1", "sum@1.0.0")


async def acquire(host: SandboxHost, name: str = "a", lease_s: float = 10.0) -> int:
    return await host.acquire(name, LIMITS, lease_s, NOBODY)


async def test_many_askers_of_one_session_share_one_sandbox(tmp_path: Path) -> None:
    made, _ = world(tmp_path)
    epochs = await asyncio.gather(*(acquire(made.host) for _ in range(5)))
    assert len(set(epochs)) == 1
    assert made.fake.created == 1
    await made.close()


async def test_a_command_id_runs_once_however_often_it_is_sent(tmp_path: Path) -> None:
    made, _ = world(tmp_path)
    await acquire(made.host)
    runs = 0
    gate = asyncio.Event()

    async def work(sandbox: Sandbox) -> CommandResult:
        nonlocal runs
        runs += 1
        await gate.wait()
        return await sandbox.python("1 + 1", LIMITS)

    askers = [asyncio.create_task(made.host.run("a", "c", work)) for _ in range(4)]
    await asyncio.sleep(0)
    gate.set()
    results = await asyncio.gather(*askers, made.host.run("a", "c", work))
    assert {result.stdout for result in results} == {b"2\n"}
    assert runs == 1
    assert await made.host.run("a", "c", work) == results[0]
    assert runs == 1
    await made.close()


async def test_a_caller_that_hangs_up_does_not_stop_its_command(tmp_path: Path) -> None:
    made, _ = world(tmp_path)
    await acquire(made.host)
    gate = asyncio.Event()

    async def work(sandbox: Sandbox) -> CommandResult:
        await gate.wait()
        return await sandbox.python("7", LIMITS)

    asker = asyncio.create_task(made.host.run("a", "c", work))
    await asyncio.sleep(0)
    asker.cancel()
    gate.set()
    assert (await made.host.run("a", "c", work)).stdout == b"7\n"
    await made.close()


async def test_a_command_that_the_host_failed_may_be_sent_again(tmp_path: Path) -> None:
    made, _ = world(tmp_path)
    await acquire(made.host)

    async def fails(_: Sandbox) -> CommandResult:
        raise Unavailable("broken")

    async def works(sandbox: Sandbox) -> CommandResult:
        return await sandbox.python("1", LIMITS)

    with pytest.raises(Unavailable, match="broken"):
        await made.host.run("a", "c", fails)
    assert (await made.host.run("a", "c", works)).stdout == b"1\n"
    await made.close()


async def test_an_unused_session_is_reaped_and_stays_stale(tmp_path: Path) -> None:
    made, clock = world(tmp_path)
    reaper = asyncio.create_task(made.host.reap())
    await acquire(made.host, lease_s=10.0)
    await clock.advance(9.0)
    assert len(made.fake.live) == 1
    await clock.advance(2.0)
    assert made.fake.live == set()
    assert made.records[0].end == "reaped"
    with pytest.raises(Stale):
        await acquire(made.host)
    reaper.cancel()


async def test_use_keeps_a_session_alive(tmp_path: Path) -> None:
    made, clock = world(tmp_path)
    reaper = asyncio.create_task(made.host.reap())
    epoch = await acquire(made.host, lease_s=10.0)
    for _ in range(4):
        await clock.advance(8.0)
        made.host.renew("a", epoch, 10.0)
    assert len(made.fake.live) == 1
    reaper.cancel()
    await made.close()


async def test_a_new_session_waits_for_a_slot_and_is_refused_after_its_time(tmp_path: Path) -> None:
    made, clock = world(tmp_path, slots=1, wait_s=5.0)
    await acquire(made.host)
    waiting = asyncio.create_task(acquire(made.host, "b"))
    await clock.advance(4.0)
    assert not waiting.done()
    await made.host.end("a", End.RELEASED)
    assert await waiting
    refused = asyncio.create_task(acquire(made.host, "c"))
    await clock.advance(6.0)
    with pytest.raises(Exhausted):
        await refused
    await made.close()


async def test_a_new_session_waits_for_the_sandbox_of_an_ended_one_to_be_destroyed(tmp_path: Path) -> None:
    made, clock = world(tmp_path, slots=1, wait_s=5.0)
    await acquire(made.host)
    (sandbox,) = made.fake.live
    destroy, gate = sandbox.destroy, asyncio.Event()

    async def slow() -> None:
        await gate.wait()
        await destroy()

    slowed: Any = sandbox
    slowed.destroy = slow
    ending = asyncio.create_task(made.host.end("a", End.FINISHED))
    waiting = asyncio.create_task(acquire(made.host, "b"))
    await clock.settle()
    assert not waiting.done()
    gate.set()
    assert await waiting
    assert await ending
    await made.close()


async def test_a_pool_that_closes_while_it_fills_leaves_nothing(tmp_path: Path) -> None:
    made, clock = world(tmp_path, warm=3)
    fake: Any = made.fake
    create, gate = fake.create, asyncio.Event()

    async def slow(name: str, limits: Limits, network: str = "") -> Sandbox:
        await gate.wait()
        return await create(name, limits, network)

    fake.create = slow
    filler = asyncio.create_task(made.pool.fill())
    await clock.settle()
    closing = asyncio.create_task(made.pool.close())
    await clock.settle()
    gate.set()
    await closing
    await filler
    assert made.fake.live == set()


async def test_a_sandbox_whose_session_ended_while_it_was_made_is_destroyed(tmp_path: Path) -> None:
    made, _ = world(tmp_path)
    fake: Any = made.fake
    create = fake.create
    gate = asyncio.Event()

    async def slow(name: str, limits: Limits, network: str = "") -> Sandbox:
        await gate.wait()
        return await create(name, limits, network)

    fake.create = slow
    asker = asyncio.create_task(acquire(made.host))
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    await made.host.end("a", End.RELEASED)
    gate.set()
    with pytest.raises(Stale):
        await asker
    assert made.fake.live == set()
    await made.close()


class Slow(FakeBackend):
    """Makes a sandbox when it is let."""

    def __init__(self) -> None:
        super().__init__(slots=1)
        self.gate = asyncio.Event()

    async def create(self, name: str, limits: Limits, network: str = "") -> Any:
        await self.gate.wait()
        return await super().create(name, limits, network)


async def test_a_sandbox_that_is_ready_after_its_callers_time_is_given_back_at_once(tmp_path: Path) -> None:
    slow = Slow()
    made, clock = world(tmp_path, slots=1, backend=slow)
    asker = made.host.asker("r1", clock.now() + 5.0)
    asking = asyncio.create_task(made.host.acquire("a", LIMITS, 50.0, NOBODY, asker))
    await clock.advance(6.0)
    slow.gate.set()
    with pytest.raises(Stale, match="ended while it was being made"):
        await asking
    assert slow.live == set()
    with pytest.raises(Stale, match="given up"):
        await acquire(made.host)
    with pytest.raises(Stale, match="given up"):
        made.host.sandbox("a")
    await acquire(made.host, "b")
    await made.close()


async def test_a_retry_that_came_meanwhile_gets_the_sandbox(tmp_path: Path) -> None:
    slow = Slow()
    made, clock = world(tmp_path, slots=1, backend=slow)
    first = made.host.asker("r1", clock.now() + 5.0)
    gave_up = asyncio.create_task(made.host.acquire("a", LIMITS, 50.0, NOBODY, first))
    await clock.advance(4.0)
    gave_up.cancel()
    second = made.host.asker("r2", clock.now() + 5.0)
    retry = asyncio.create_task(made.host.acquire("a", LIMITS, 50.0, NOBODY, second))
    await clock.advance(4.0)
    assert not await made.host.withdraw("a", "r1")
    slow.gate.set()
    assert await retry == 1
    assert len(slow.live) == 1
    await made.close()


async def test_a_request_that_is_withdrawn_while_it_waits_for_a_place_makes_nothing(tmp_path: Path) -> None:
    made, clock = world(tmp_path, slots=1, wait_s=5.0)
    await acquire(made.host)
    waiting = asyncio.create_task(made.host.acquire("b", LIMITS, 50.0, NOBODY, Asker("r1")))
    await clock.settle()
    assert not await made.host.withdraw("b", "r1")
    await made.host.end("a", End.RELEASED)
    with pytest.raises(Stale, match="withdrawn"):
        await waiting
    assert made.fake.created == 1
    await acquire(made.host, "c")
    await made.close()


async def test_a_sandbox_nobody_was_given_is_destroyed_when_its_request_is_withdrawn(tmp_path: Path) -> None:
    made, _ = world(tmp_path)
    await made.host.acquire("a", LIMITS, 50.0, NOBODY, Asker("r1"))
    assert not await made.host.withdraw("a", "other")
    assert len(made.fake.live) == 1
    assert await made.host.withdraw("a", "r1")
    assert made.fake.live == set()
    assert [record.end for record in made.records] == ["abandoned"]
    await made.close()


async def test_who_joins_a_session_without_a_network_is_not_left_to_believe_in_one(tmp_path: Path) -> None:
    made, _ = world(tmp_path)
    await acquire(made.host)
    wide = replace(NOBODY, egress=Policy(Mode.ALLOW, (Rule("pypi.org"),)))
    with pytest.raises(Rejected, match=r"egress: .*lives already, without a network.*another name"):
        await made.host.acquire("a", LIMITS, 50.0, wide)
    assert await acquire(made.host) == 1
    await made.close()


async def test_a_failed_creation_is_told_and_may_be_tried_again(tmp_path: Path) -> None:
    made, _ = world(tmp_path)
    fake: Any = made.fake
    create = fake.create

    async def broken(name: str, limits: Limits, network: str = "") -> Sandbox:
        raise Unavailable("no")

    fake.create = broken
    with pytest.raises(Unavailable):
        await acquire(made.host)
    fake.create = create
    await acquire(made.host)
    await made.close()


async def test_the_record_of_a_session_sums_up_its_commands(tmp_path: Path) -> None:
    made, clock = world(tmp_path)
    await acquire(made.host)
    hit = CommandResult(Outcome.TIMED_OUT, evidence=Evidence(wall_s=3.0, cpu_s=1.0, peak_memory_bytes=50))
    for command, result in (("1", hit), ("2", hit), ("3", replace(hit, outcome=Outcome.OK))):

        async def work(_: Sandbox, result: CommandResult = result) -> CommandResult:
            return result

        await made.host.run("a", command, work)
    await clock.advance(7.0)
    assert await made.host.end("a", End.FINISHED)
    assert not await made.host.end("a", End.FINISHED)
    (record,) = made.records
    assert (record.session_id, record.job_id, record.env, record.commands) == ("a", "job-1", "sum@1.0.0", 3)
    assert (record.cpu_s, record.peak_memory_bytes, record.slowest_s) == (3.0, 50, 3.0)
    assert dict(record.limit_hits) == {"timed_out": 2}
    assert record.released_at.ToSeconds() - record.acquired_at.ToSeconds() == 7


async def test_draining_ends_every_session_and_takes_no_new_one(tmp_path: Path) -> None:
    made, _ = world(tmp_path)
    await acquire(made.host)
    await acquire(made.host, "b")
    await made.host.drain()
    assert made.fake.live == set()
    assert [record.end for record in made.records] == ["drained", "drained"]
    with pytest.raises(Exhausted, match="draining"):
        await acquire(made.host, "c")


async def test_a_command_that_will_not_end_does_not_hold_up_a_drain(tmp_path: Path) -> None:
    made, clock = world(tmp_path)
    await acquire(made.host)

    async def endless(_: Sandbox) -> CommandResult:
        await asyncio.Event().wait()
        raise AssertionError

    asker = asyncio.create_task(made.host.run("a", "c", endless))
    draining = asyncio.create_task(made.host.drain())
    await clock.advance(9.0)
    assert not draining.done()
    await clock.advance(2.0)
    await draining
    assert made.fake.live == set()
    asker.cancel()
    for task in made.host._commands.values():
        task.cancel()


async def test_a_warm_sandbox_is_handed_out_once_and_replaced_by_a_fresh_one(tmp_path: Path) -> None:
    made, _ = world(tmp_path, warm=2)
    filler = asyncio.create_task(made.pool.fill())
    await asyncio.sleep(0)
    assert len(made.pool) == 2
    await acquire(made.host)
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert (len(made.pool), made.fake.created) == (2, 3)
    filler.cancel()
    await made.close()
    assert made.fake.live == set()


async def test_the_pool_learns_the_limits_that_are_asked_for(tmp_path: Path) -> None:
    made, clock = world(tmp_path, warm=2)
    filler = asyncio.create_task(made.pool.fill())
    await clock.settle()
    small = replace(LIMITS, memory_bytes=1 << 20)
    assert made.pool.take(small) is None
    await clock.settle()
    assert len(made.pool) == 2
    assert made.pool.take(small) is not None
    for size in range(2, 6):
        made.pool.take(replace(LIMITS, memory_bytes=size << 20))
        await clock.settle()
        assert len(made.pool) <= 2
    filler.cancel()
    await made.close()


async def test_a_dead_warm_sandbox_is_not_handed_out(tmp_path: Path) -> None:
    made, _ = world(tmp_path, warm=1)
    filler = asyncio.create_task(made.pool.fill())
    await asyncio.sleep(0)
    for sandbox in list(made.fake.live):
        await sandbox.destroy()
    assert made.pool.take(LIMITS) is None
    filler.cancel()
    await made.close()


async def test_sessions_are_listed_with_their_leases(tmp_path: Path) -> None:
    made, clock = world(tmp_path)
    await acquire(made.host, lease_s=30.0)
    (listed,) = made.host.listing()
    assert (listed.session_id, listed.job_id) == ("a", "job-1")
    assert listed.lease_until.ToSeconds() - int(clock.now()) == 30
    assert made.host.status()["in_use"] == 1
    await made.close()


class Broken(FakeBackend):
    """Fails once in a way that no backend declares."""

    broken = True

    async def create(self, name: str, limits: Limits, network: str = "") -> Any:
        if self.broken:
            raise OSError(24, "Too many open files")
        return await super().create(name, limits, network)


async def test_a_creation_that_fails_in_any_way_frees_its_place(tmp_path: Path) -> None:
    broken = Broken(slots=1)
    made, _ = world(tmp_path, slots=1, backend=broken)
    with pytest.raises(OSError, match="open files"):
        await made.host.acquire("a", LIMITS, 50.0, Purpose())
    broken.broken = False
    await made.host.acquire("b", LIMITS, 50.0, Purpose())
    await made.close()
