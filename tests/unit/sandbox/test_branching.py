"""Snapshots by step, rollback, forks and promises, over the fake backend on a clock that only the test moves."""

from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.unit.sandbox.worlds import LIMITS, World, world

from temper.runtime.errors import Exhausted, Rejected, Stale
from temper.sandbox.egress.desk import Guest
from temper.sandbox.egress.policy import Mode, Policy, Rule
from temper.sandbox.engine.base import CommandResult, Guarantee, Sandbox
from temper.sandbox.phases import End
from temper.sandbox.promises import Promises, of_this_machine
from temper.sandbox.tenancy import Purpose
from temper.sandbox.timeline import Moment, Timeline


async def acquire(made: World, name: str = "a") -> int:
    return await made.host.acquire(name, LIMITS, 50.0, Purpose("job-1", "sum@1"))


async def say(made: World, command: str, code: str) -> bytes:
    async def work(sandbox: Sandbox) -> CommandResult:
        await sandbox.put_file(f"/work/{command}", code.encode())
        return await sandbox.python(code, LIMITS)

    return (await made.host.run("a", command, work)).stdout


async def test_a_rollback_takes_back_files_and_replies_of_later_steps(tmp_path: Path) -> None:
    made, _ = world(tmp_path)
    await acquire(made)
    assert await say(made, "c1", "1") == b"1\n"
    first = await made.branches.snapshot("a", 1)
    assert await say(made, "c2", "2") == b"2\n"
    await made.branches.snapshot("a", 2)
    moment, forgotten = await made.branches.rollback("a", 1)
    assert (moment.step, moment.snapshot, forgotten) == (1, first, 1)
    with pytest.raises(Rejected):
        await made.host.sandbox("a").get_file("/work/c2", 1)
    assert await say(made, "c1", "9") == b"1\n"  # before the step: still remembered
    assert await say(made, "c2", "3") == b"3\n"  # after it: runs anew
    with pytest.raises(Rejected, match="step"):
        await made.branches.rollback("a", 0)
    assert (await made.branches.rollback("a", 7))[0].step == 1  # that of step 2 was dropped
    await made.close()


async def test_snapshots_go_with_their_session(tmp_path: Path) -> None:
    made, _ = world(tmp_path)
    await acquire(made)
    taken = await made.branches.snapshot("a", 1)
    again = await made.branches.snapshot("a", 1)
    with pytest.raises(Rejected, match="snapshot"):
        await made.branches.restore("a", taken)
    await made.host.end("a", End.RELEASED)
    with pytest.raises(Rejected, match="no snapshot"):
        await made.fake.fork(again, ["x"], LIMITS)
    with pytest.raises(Stale):
        await made.branches.restore("a", again)
    await made.close()


async def test_each_fork_is_a_session_with_an_outcome_of_its_own(tmp_path: Path) -> None:
    made, _ = world(tmp_path, slots=3)
    await acquire(made)
    await say(made, "c1", "1")
    taken = await made.branches.snapshot("a", 1)
    forks = await made.branches.fork("a", taken, ["f1", "f2", "f3"], 0)
    assert [bool(fork.epoch) for fork in forks] == [True, True, False]
    assert "taken" in forks[2].error
    assert await made.host.sandbox("f1").get_file("/work/c1", 9) == (b"1", False)
    assert await made.branches.fork("a", taken, ["f1"], 0) == forks[:1]  # a repeat makes nothing
    await made.host.end("f1", End.RELEASED)
    assert "ended" in (await made.branches.fork("a", taken, ["f1"], 0))[0].error
    assert (await made.branches.fork("a", taken, ["f3"], 0))[0].epoch
    with pytest.raises(Rejected, match="snapshot"):
        await made.branches.fork("f2", taken, ["x"], 0)
    await made.close()


async def test_what_is_no_fork_of_the_snapshot_is_not_called_one(tmp_path: Path) -> None:
    made, _ = world(tmp_path)
    await acquire(made)
    await acquire(made, "other")
    taken = await made.branches.snapshot("a", 1)
    first = await made.branches.fork("a", taken, ["f1"], 5.0)
    again = await made.branches.fork("a", taken, ["f1", "other"], 5.0)
    assert again[0] == first[0]
    assert (again[1].epoch, "no fork" in again[1].error) == (0, True)
    for names in (["a"], ["f2", "f2"], ["f2", "a"]):
        with pytest.raises(Rejected, match="fork_session_ids"):
            await made.branches.fork("a", taken, names, 5.0)
    assert made.host.sessions.find("f2") is None
    later = await made.branches.snapshot("a", 2)
    with pytest.raises(Rejected, match=rf"it has {taken}, {later}"):
        await made.branches.fork("a", "nothing", ["f3"], 5.0)
    await made.close()


async def test_a_promise_that_cannot_be_kept_is_not_made(tmp_path: Path) -> None:
    made, _ = world(tmp_path)
    greedy = replace(LIMITS, guarantee=Guarantee(memory_bytes=1 << 60))
    with pytest.raises(Rejected, match="memory"):
        await made.host.acquire("greedy", greedy, 10.0, Purpose())
    await acquire(made)  # the place is free again
    await made.close()


def test_promises_are_summed_and_released() -> None:
    promises = Promises(Guarantee(memory_bytes=100, cpus=2.0, pids=10))
    promises.give("a", Guarantee(memory_bytes=40, disk_bytes=20, cpus=1.5))
    with pytest.raises(Exhausted, match="memory_bytes"):
        promises.give("b", Guarantee(memory_bytes=41))
    with pytest.raises(Exhausted, match="cpus"):
        promises.give("b", Guarantee(cpus=0.6))
    with pytest.raises(Rejected, match="pids"):
        promises.give("b", Guarantee(pids=11))
    promises.give("b", Guarantee())
    promises.release("a")
    promises.release("a")
    promises.give("b", Guarantee(memory_bytes=100, cpus=2.0, pids=10))


@given(st.lists(st.tuples(st.booleans(), st.integers(0, 9)), max_size=30))
def test_a_timeline_knows_exactly_the_moments_it_has_not_dropped(moves: list[tuple[bool, int]]) -> None:
    timeline = Timeline()
    known: dict[int, str] = {}
    for number, (back, step) in enumerate(moves):
        if back and any(each <= step for each in known):
            expected = max(each for each in known if each <= step)
            assert timeline.at(step).snapshot == known[expected]
            gone = {known.pop(each) for each in list(known) if each > expected}
            assert set(timeline.forget_after(expected)) == gone
        elif not back:
            gone = timeline.add(Moment(step, f"s{number}", number))
            assert gone == ([known[step]] if step in known else [])
            known[step] = f"s{number}"
        assert len(timeline) == len(known)
    assert set(timeline.clear()) == set(known.values())


async def test_forks_are_promised_what_their_origin_was(tmp_path: Path) -> None:
    made, _ = world(tmp_path)
    half = of_this_machine().pids // 2
    limits = replace(LIMITS, guarantee=Guarantee(pids=half + 1))
    await made.host.acquire("a", limits, 50.0, Purpose("job-1", "sum@1"))
    taken = await made.branches.snapshot("a", 1)
    (refused,) = await made.branches.fork("a", taken, ["b"], 50.0)
    assert (refused.epoch, "promised" in refused.error) == (0, True)
    assert [each.session_id for each in made.host.listing()] == ["a"]
    await made.close()


class Doors:
    """Stands where the proxies would be: who was given a way out, and who lost it."""

    def __init__(self) -> None:
        self.open: dict[str, Policy] = {}

    async def attach(self, guest: Guest, sandbox: Sandbox, policy: Policy) -> Sandbox:
        self.open[guest.session] = policy
        return sandbox

    async def detach(self, session: str) -> None:
        self.open.pop(session, None)


async def test_a_fork_has_the_network_of_its_origin(tmp_path: Path) -> None:
    made, _ = world(tmp_path)
    doors = Doors()
    made.host.egress = doors  # type: ignore[assignment]  # has the two methods that a host uses
    await acquire(made)
    policy = Policy(Mode.ALLOW, (Rule("good.example"),))
    made.host.tenant("a").purpose = Purpose("job-1", "sum@1", policy)
    taken = await made.branches.snapshot("a", 1)
    (fork,) = await made.branches.fork("a", taken, ["b"], 50.0)
    assert fork.error == ""
    assert doors.open["b"] == policy
    await made.host.end("b", End.RELEASED)
    assert "b" not in doors.open
    await made.close()
