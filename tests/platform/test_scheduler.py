"""Whole jobs on the in-memory platform: crashes, takeovers, lost and repeated messages, users who change their mind."""

from __future__ import annotations

import asyncio
import random

import pytest
import pytest_asyncio
from tests.platform.scheduling import World, assert_balanced, digest_of, raised
from tests.unit.scheduler.jobs import demo_phase, env, policy_phase, spec

from temper.api.common.v1.common_pb2 import Purpose
from temper.api.job.v1 import job_pb2
from temper.api.job.v1.job_pb2 import Job, JobEvent, JobState
from temper.api.job.v1.platform_pb2 import Presence
from temper.api.qa.v1.qa_pb2 import EnvironmentRecord, EnvironmentState
from temper.api.rollout.v1.rollout_pb2 import GroupCommand
from temper.runtime.errors import Conflict, Exhausted, Rejected
from temper.scheduler.admission import FROM_DEMONSTRATIONS
from temper.scheduler.config import NamesConfig
from temper.scheduler.transitions import CANCELLED, FAILED, PAUSED, RUNNING, SUCCEEDED, name_of
from temper.trainer.algorithms import registry
from temper.trainer.engine import ENGINES


@pytest_asyncio.fixture
async def world(memory_platform):
    made = World(memory_platform)
    await made.peers.start()
    yield made
    await made.stop()


async def facts(world, job_id):
    """Records of topic `jobs`."""
    records = await world.platform.log.read("jobs", key=job_id, max_records=1000, timeout_s=0)
    return [record.message(JobEvent) for record in records]


async def test_a_whole_job_succeeds_and_its_ledger_balances(world):
    scheduler = await world.scheduler("scheduler/a")
    job = await scheduler.create(spec(phases=[demo_phase(), policy_phase()]))
    assert job.id.startswith("quickstart-")
    done = await world.until_over(scheduler, job.id)
    assert done.state == SUCCEEDED
    assert {(each.point, each.domain) for each in done.evals} == {
        (point, domain) for point in ("before", "after") for domain in ("calc", "sums")
    }
    assert done.started_at.seconds
    assert done.ended_at.seconds
    assert done.spec.domains[0].resolved.digest
    await assert_balanced(scheduler, world.peers, job.id)
    states = [name_of(each.state.state) for each in await facts(world, job.id) if each.HasField("state")]
    assert states == ["pending", "starting", "running", "finishing", "succeeded"]


@pytest.mark.parametrize("seed", range(6))
async def test_kill_nine_at_random_moments_loses_and_doubles_nothing(world, seed):
    chance = random.Random(seed)
    scheduler = await world.scheduler("scheduler/0")
    job = await scheduler.create(spec(phases=[demo_phase(steps=8), policy_phase(steps=16)]))
    for life in range(1, 6):
        await world.clock.advance(chance.uniform(0.0, 2.0))
        await scheduler.kill()
        await world.pass_time(chance.choice([0.5, 7.0]))
        scheduler = await world.scheduler(f"scheduler/{life}")
    done = await world.until_over(scheduler, job.id)
    assert done.state == SUCCEEDED
    await assert_balanced(scheduler, world.peers, job.id)
    assert all(each.n == each.attempted for each in done.evals)


async def test_a_standby_takes_over_within_the_ttl(world):
    first = await world.scheduler("scheduler/a")
    standby = await world.scheduler("scheduler/b")
    world.peers.rolling = False
    job = await first.create(spec())
    await world.pass_time(2.0)
    driver, other = (first, standby) if first.steward.status()["jobs"] else (standby, first)
    assert not other.steward.status()["jobs"]
    await driver.kill()
    await world.pass_time(9.0)
    assert other.steward.status()["jobs"] == 1
    world.peers.rolling = True
    assert (await world.until_over(other, job.id)).state == SUCCEEDED
    await assert_balanced(other, world.peers, job.id)


async def test_a_drained_scheduler_hands_over_at_once(world):
    first = await world.scheduler("scheduler/a")
    world.peers.rolling = False
    job = await first.create(spec())
    await world.pass_time(2.0)
    second = await world.scheduler("scheduler/b")
    await world.pass_time(2.0)
    assert not second.steward.status()["jobs"]
    await first.stop()
    await world.pass_time(2.0)
    assert second.steward.status()["jobs"] == 1
    world.peers.rolling = True
    assert (await world.until_over(second, job.id)).state == SUCCEEDED


async def test_a_broken_network_does_not_make_two_drivers(world):
    """The one that is cut off stops by itself, and when it comes back it finds another driver and leaves it alone."""
    first = await world.scheduler("scheduler/a")
    job = await first.create(spec(phases=[policy_phase(steps=8)]))
    await world.pass_time(1.0)
    second = await world.scheduler("scheduler/b")
    first.bus.cut()
    await world.pass_time(9.0)
    first.bus.mend()
    done = await world.until_over(second, job.id)
    assert done.state == SUCCEEDED
    await assert_balanced(second, world.peers, job.id)


async def test_lost_and_repeated_messages_are_made_good(world):
    """A worker acks without a word, one dies without an ack, one publishes twice."""
    chance = random.Random(3)

    async def mischief(command, delivery):
        fate = chance.random()
        if delivery.envelope.id.partition("~")[2] or fate > 0.4:
            return False
        if fate < 0.1:
            await delivery.ack()  # lost for good: only the alarm brings it back
            return True
        if fate < 0.2 and delivery.delivered == 1:
            return True  # died: redelivered after the ack wait
        await world.peers.play(command)
        await world.peers.play(command, suffix="/again")
        await delivery.ack()
        return True

    world.peers.mischief = mischief
    scheduler = await world.scheduler("scheduler/a")
    job = await scheduler.create(spec(phases=[policy_phase(steps=6)], rollout={"groupDeadlineS": 5}))
    done = await world.until_over(scheduler, job.id, within_s=900)
    assert done.state == SUCCEEDED
    await assert_balanced(scheduler, world.peers, job.id)


async def test_a_poisoned_group_is_dead_lettered_told_and_replaced(world):
    async def mischief(command, delivery):
        return command.purpose == Purpose.PURPOSE_TRAIN and command.index == 2

    world.peers.mischief = mischief
    scheduler = await world.scheduler("scheduler/a")
    job = await scheduler.create(spec())
    done = await world.until_over(scheduler, job.id)
    assert done.state == SUCCEEDED
    assert dict(done.progress.groups_dropped) == {"DROP_REASON_POISON": 1}
    await assert_balanced(scheduler, world.peers, job.id)
    letters = await scheduler.bus.dead_letters()
    assert [letter.envelope.id for letter in letters] == [f"{job.id}-2"]
    notices = [each.notice.code for each in await facts(world, job.id) if each.HasField("notice")]
    assert notices.count("group_poisoned") == 1


async def test_a_group_that_a_worker_refuses_for_good_is_settled_too(world):
    async def mischief(command, delivery):
        if command.purpose == Purpose.PURPOSE_TRAIN and command.index == 1:
            await delivery.term("not a command of this version")
            return True
        return False

    world.peers.mischief = mischief
    scheduler = await world.scheduler("scheduler/a")
    job = await scheduler.create(spec())
    assert (await world.until_over(scheduler, job.id)).state == SUCCEEDED
    await assert_balanced(scheduler, world.peers, job.id)


async def test_a_job_that_no_trainer_takes_fails_with_the_reason(world):
    world.peers.refuse_job = "engine 'torch' is not installed"
    scheduler = await world.scheduler("scheduler/a")
    job = await scheduler.create(spec())
    done = await world.until_over(scheduler, job.id, within_s=30)
    assert done.state == FAILED
    assert "not installed" in done.reason


async def test_silence_is_an_alarm_that_names_what_is_missing(world):
    world.peers.rolling = False
    scheduler = await world.scheduler("scheduler/a")
    job = await scheduler.create(spec())
    await (await world.peers.bus.kv("presence")).delete("rollout.1")
    for _ in range(40):
        await world.peers.announce("trainer", "sandbox", "qa")
        await world.clock.advance(0.5)
    found = [each.notice for each in await facts(world, job.id) if each.HasField("notice")]
    assert [each.code for each in found] == ["stalled"]
    assert "no rollout service is running" in found[0].message


async def test_pause_lets_groups_finish_and_resume_goes_on(world):
    scheduler = await world.scheduler("scheduler/a")
    job = await scheduler.create(spec(phases=[policy_phase(steps=30)]))
    while (await scheduler.job(job.id)).state != RUNNING or not world.peers.trainers[job.id].record.step:
        await world.clock.advance(0.1)
    paused = (await scheduler.api.PauseJob(job_pb2.PauseJobRequest(job_id=job.id), None)).job
    assert paused.state == PAUSED
    await world.pass_time(5.0)
    published = (await scheduler.books(job.id)).next_index
    await world.pass_time(5.0)
    still = await scheduler.job(job.id)
    assert still.state == PAUSED
    assert (await scheduler.books(job.id)).next_index == published
    assert still.progress.step < 30
    await scheduler.api.ResumeJob(job_pb2.ResumeJobRequest(job_id=job.id), None)
    assert (await world.until_over(scheduler, job.id)).state == SUCCEEDED
    await assert_balanced(scheduler, world.peers, job.id)


async def test_cancel_ends_a_job_for_good(world):
    scheduler = await world.scheduler("scheduler/a")
    job = await scheduler.create(spec(phases=[policy_phase(steps=50)]))
    await world.pass_time(1.0)
    request = job_pb2.CancelJobRequest(job_id=job.id, reason="enough")
    cancelled = (await scheduler.api.CancelJob(request, None)).job
    await world.pass_time(3.0)
    published = (await scheduler.books(job.id)).next_index
    await world.pass_time(5.0)
    final = await scheduler.job(job.id)
    assert (cancelled.state, final.state, final.reason) == (CANCELLED, CANCELLED, "enough")
    assert (await scheduler.books(job.id)).next_index == published
    progress = final.progress
    assert progress.groups_in_flight == 0
    assert progress.groups_consumed + sum(progress.groups_dropped.values()) == published > 0
    assert not scheduler.steward.status()["jobs"]
    assert (await scheduler.api.CancelJob(request, None)).job.state == CANCELLED


async def test_several_jobs_share_a_scheduler(world):
    scheduler = await world.scheduler("scheduler/a")
    jobs = [await scheduler.create(spec(name=f"job-{n}"), f"r{n}") for n in range(3)]
    for job in jobs:
        assert (await world.until_over(scheduler, job.id)).state == SUCCEEDED
        await assert_balanced(scheduler, world.peers, job.id)


# ---------------------------------------------------------------- API
async def test_the_same_request_gives_the_same_job(world):
    scheduler = await world.scheduler("scheduler/a")
    first = await scheduler.create(spec(), "r1")
    again = await scheduler.create(spec(), "r1")
    assert again.id == first.id
    error = await raised(scheduler.create(spec(seed=8), "r1"))
    assert isinstance(error, Conflict)
    assert error.field == "request_id"
    renamed = await raised(scheduler.create(spec(name="other"), "r1"))
    assert isinstance(renamed, Conflict)


async def test_validate_only_creates_nothing(world):
    scheduler = await world.scheduler("scheduler/a")
    checked = await scheduler.create(spec(), "r1", validate_only=True)
    assert checked.id == ""
    assert checked.spec.phases[0].optimizer.beta2 == 0.99
    listed = await scheduler.api.ListJobs(job_pb2.ListJobsRequest(), None)
    assert not listed.jobs


async def test_an_unknown_environment_is_refused_at_its_path(world):
    world.peers.refused_envs = {"rg/chain_sum": "no environment named 'rg/chain_sum'"}
    scheduler = await world.scheduler("scheduler/a")
    error = await raised(scheduler.create(spec()))
    assert isinstance(error, Rejected)
    assert error.field == "spec.domains[1].env"


async def test_a_policy_that_was_never_uploaded_is_refused(world):
    scheduler = await world.scheduler("scheduler/a")
    request = job_pb2.CreateJobRequest(spec=spec(), request_id="r")
    error = await raised(scheduler.api.CreateJob(request, None))
    assert error.field == "spec.policy.checkpoint.files[config.json]"


async def test_pages_walk_all_jobs_newest_first(world):
    scheduler = await world.scheduler("scheduler/a")
    made = []
    for number in range(5):
        made.append((await scheduler.create(spec(name=f"n{number}"), f"r{number}")).id)
        await world.clock.advance(0.01)
    seen, token = [], ""
    while True:
        page = await scheduler.api.ListJobs(job_pb2.ListJobsRequest(page_size=2, page_token=token), None)
        seen += [job.id for job in page.jobs]
        token = page.next_page_token
        if not token:
            break
    assert seen == made[::-1]
    error = await raised(scheduler.api.ListJobs(job_pb2.ListJobsRequest(page_token="x"), None))
    assert error.field == "page_token"


async def test_updates_change_labels_and_shares_but_not_begun_phases(world):
    scheduler = await world.scheduler("scheduler/a")
    job = await scheduler.create(spec(phases=[policy_phase(steps=20)]))
    await world.pass_time(1.0)
    edited = Job()
    edited.CopyFrom(await scheduler.job(job.id))
    edited.etag = ""
    edited.spec.labels["team"] = "x"
    edited.spec.domains[0].share = 9
    changed = await scheduler.update(edited, "spec.labels", "spec.domains")
    assert changed.spec.labels["team"] == "x"
    edited.spec.phases[0].steps = 5
    assert isinstance(await raised(scheduler.update(edited, "spec.phases")), Conflict)
    unknown = await raised(scheduler.update(edited, "spec.label"))
    assert unknown.hint == "did you mean 'spec.labels'?"
    stale = Job(id=job.id, etag="1")
    assert isinstance(await raised(scheduler.update(stale, "spec.labels")), Conflict)
    done = await world.until_over(scheduler, job.id)
    assert done.spec.domains[0].share == 9
    assert done.state == SUCCEEDED


async def collect(scheduler, world, job_id, cursor=""):
    """All messages of a watch; time passes while it waits."""
    request = job_pb2.WatchJobRequest(job_id=job_id, cursor=cursor)

    async def watch():
        return [message async for message in scheduler.api.WatchJob(request, None)]

    task = asyncio.create_task(watch())
    for _ in range(600):
        await world.pass_time(0.5)
        if task.done():
            break
    return await task


async def test_a_watch_begins_with_a_snapshot_and_ends_with_the_job(world):
    scheduler = await world.scheduler("scheduler/a")
    job = await scheduler.create(spec(phases=[policy_phase(steps=20)]))
    messages = await collect(scheduler, world, job.id)
    assert messages[0].HasField("snapshot")
    states = [name_of(m.event.state.state) for m in messages if m.event.HasField("state")]
    assert states[-3:] == ["running", "finishing", "succeeded"]
    assert any(m.event.HasField("progress") for m in messages)
    assert len([m for m in messages if m.event.HasField("eval")]) == 4
    assert (await scheduler.job(job.id)).state == SUCCEEDED


async def test_a_watch_resumes_behind_its_cursor(world):
    scheduler = await world.scheduler("scheduler/a")
    job = await scheduler.create(spec())
    messages = await collect(scheduler, world, job.id)
    middle = len(messages) // 2
    again = await collect(scheduler, world, job.id, messages[middle].cursor)
    assert [m.event for m in again] == [m.event for m in messages[middle + 1 :]]


async def test_an_expired_cursor_gets_a_snapshot_and_nonsense_is_refused(world):
    scheduler = await world.scheduler("scheduler/a")
    job = await scheduler.create(spec())
    await world.until_over(scheduler, job.id)
    old = await collect(scheduler, world, job.id, "1-1000")
    assert [m.WhichOneof("message") for m in old] == ["snapshot"]
    stream = scheduler.api.WatchJob(job_pb2.WatchJobRequest(job_id=job.id, cursor="yesterday"), None)
    assert isinstance(await raised(anext(stream)), Rejected)


async def test_a_watch_of_an_ended_job_whose_last_event_is_gone_still_ends(world):
    scheduler = await world.scheduler("scheduler/a")
    job = await scheduler.create(spec())
    done = await world.until_over(scheduler, job.id)
    end = f"{scheduler.watch._last}-{int(world.clock.now())}"
    messages = await collect(scheduler, world, job.id, end)
    assert [m.WhichOneof("message") for m in messages] == ["snapshot"]
    assert messages[0].snapshot.state == done.state


async def test_only_a_paused_job_can_be_resumed(world):
    scheduler = await world.scheduler("scheduler/a")
    job = await scheduler.create(spec())
    error = await raised(scheduler.api.ResumeJob(job_pb2.ResumeJobRequest(job_id=job.id), None))
    assert isinstance(error, Conflict)
    assert JobState.Name((await scheduler.job(job.id)).state)


async def test_a_job_that_cannot_be_driven_is_paused_with_the_cause_and_leaves_others_alone(world):
    scheduler = await world.scheduler("scheduler/a")
    sick = await scheduler.create(spec(name="sick", phases=[policy_phase(steps=40)]), "r1")
    well = await scheduler.create(spec(name="well"), "r2")
    while (await scheduler.job(sick.id)).state != RUNNING:
        await world.clock.advance(0.1)
    await scheduler.kill()
    bucket = await world.platform.bus.kv("jobs")
    await bucket.put(f"{sick.id}.ledger", b"not a ledger")
    second = await world.scheduler("scheduler/b")
    done = await world.until_over(second, well.id)
    await world.pass_time(60.0)
    paused = await second.job(sick.id)
    assert (done.state, paused.state) == (SUCCEEDED, PAUSED)
    assert "cannot drive" in paused.reason


async def quarantine(world, name, state):
    record = EnvironmentRecord(env=env(name), state=state, reason="it leaks its answers")
    record.env.digest = digest_of(name)
    key = f"{name.replace('/', '.')}.1.0.0"
    await (await world.platform.bus.kv("environments")).put(key, record.SerializeToString())


async def test_a_quarantined_environment_is_mixed_no_more_and_its_groups_are_revoked(world):
    scheduler = await world.scheduler("scheduler/a")
    job = await scheduler.create(spec(phases=[policy_phase(steps=20)]))
    while (await scheduler.job(job.id)).state != RUNNING or not world.peers.trainers[job.id].record.step:
        await world.clock.advance(0.1)
    world.peers.rolling = False
    await world.pass_time(2.0)
    await quarantine(world, "calc", EnvironmentState.ENVIRONMENT_STATE_QUARANTINED)
    await world.pass_time(2.0)
    calc = (await scheduler.job(job.id)).progress.domain_groups["calc"]
    world.peers.rolling = True
    done = await world.until_over(scheduler, job.id)
    assert done.state == SUCCEEDED
    assert done.progress.domain_groups["calc"] == calc
    await assert_balanced(scheduler, world.peers, job.id)
    notices = [each.notice for each in await facts(world, job.id) if each.HasField("notice")]
    assert [each.code for each in notices] == ["environment_quarantined"]
    assert "it leaks its answers" in notices[0].message


async def test_a_lifted_quarantine_mixes_again(world):
    scheduler = await world.scheduler("scheduler/a")
    job = await scheduler.create(spec(phases=[policy_phase(steps=12)]))
    await quarantine(world, "calc", EnvironmentState.ENVIRONMENT_STATE_QUARANTINED)
    await quarantine(world, "rg/chain_sum", EnvironmentState.ENVIRONMENT_STATE_QUARANTINED)
    await world.pass_time(5.0)
    assert "every environment of the mix" in (await scheduler.job(job.id)).reason
    assert not (await scheduler.job(job.id)).progress.groups_published
    await quarantine(world, "calc", EnvironmentState.ENVIRONMENT_STATE_CHECKING)
    await world.pass_time(2.0)
    assert not (await scheduler.job(job.id)).progress.groups_published
    await quarantine(world, "calc", EnvironmentState.ENVIRONMENT_STATE_ADMITTED)
    done = await world.until_over(scheduler, job.id)
    assert done.state == SUCCEEDED
    assert set(done.progress.domain_groups) == {"calc"}
    assert done.reason == ""


async def test_every_group_is_in_the_books_before_it_is_published(world):
    scheduler = await world.scheduler("scheduler/a")
    publish, early = scheduler.bus.command, []

    async def checked(subject, msg, **more):
        if isinstance(msg, GroupCommand) and msg.purpose == Purpose.PURPOSE_TRAIN:
            books = await scheduler.books(msg.job_id)
            if books.unsettled.get(msg.index) != msg.SerializeToString():
                early.append(msg.group_id)
        await publish(subject, msg, **more)

    scheduler.bus.command = checked
    job = await scheduler.create(spec())
    assert (await world.until_over(scheduler, job.id)).state == SUCCEEDED
    assert early == []


async def test_a_full_queue_is_back_pressure_and_not_an_error(world):
    scheduler = await world.scheduler("scheduler/a")
    publish, refused = scheduler.bus.command, []

    async def full(subject, msg, **more):
        if len(refused) < 5:
            refused.append(msg)
            raise Exhausted("the queue is full")
        await publish(subject, msg, **more)

    scheduler.bus.command = full
    job = await scheduler.create(spec())
    assert (await world.until_over(scheduler, job.id)).state == SUCCEEDED
    await assert_balanced(scheduler, world.peers, job.id)


async def test_names_are_those_that_live_trainers_offer(world):
    scheduler = await world.scheduler("scheduler/a")
    presence = Presence(
        service="trainer",
        instance="2",
        status={"algorithms": "sft,grpo,mine", "demonstrations": "sft", "engines": "torch,big"},
    )
    await (await world.peers.bus.kv("presence")).put("trainer.2", presence.SerializeToString())
    known = await scheduler.admission.known()
    assert known.algorithms == ("grpo", "mine", "sft")
    assert known.from_demonstrations == ("sft",)
    assert known.engines == ("big", "torch")
    job = await scheduler.create(spec(phases=[policy_phase(algorithm="mine")]))
    assert job.spec.phases[0].algorithm == "mine"


def test_names_that_are_known_before_a_trainer_is_there_are_those_of_our_trainer():
    names = NamesConfig()
    assert sorted(names.algorithms) == sorted(registry())
    assert set(names.engines) <= set(ENGINES)
    assert set(FROM_DEMONSTRATIONS) == {name for name, each in registry().items() if not each.needs_reward}
