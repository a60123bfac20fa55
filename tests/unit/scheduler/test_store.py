"""Two writers of a job and one of its books: compare-and-set, and what each of them owns."""

from __future__ import annotations

import asyncio

import pytest
from structlog.testing import capture_logs
from tests.unit.scheduler.jobs import env, job, policy_phase

from temper.api.job.v1.job_pb2 import EvalResult, GateRecord, Job, JobLedger, JobState
from temper.api.qa.v1.qa_pb2 import EnvironmentRecord, EnvironmentState
from temper.api.trainer.v1.trainer_pb2 import PolicyRecord
from temper.runtime.errors import Conflict, Rejected, Stale, Unavailable
from temper.runtime.testing import eventually
from temper.scheduler.admission import slug
from temper.scheduler.editing import checked_paths, edit
from temper.scheduler.feeds import Feeds
from temper.scheduler.signals import EnvironmentSeen, PolicySeen
from temper.scheduler.store import Books, JobStore, merge, persistently, write_orders

RUNNING, PAUSED = JobState.JOB_STATE_RUNNING, JobState.JOB_STATE_PAUSED


async def test_a_change_is_repeated_on_what_the_other_wrote(memory_platform):
    store = JobStore(memory_platform.bus)
    await store.create(job())
    raced = []

    def label(stored: Job) -> None:
        if not raced:
            raced.append(True)
            memory_platform.bus.broker.buckets["jobs"].write(
                "quickstart-7f3a", job(JobState.JOB_STATE_STARTING).SerializeToString(), None
            )
        stored.spec.labels["a"] = "b"

    changed = await store.change("quickstart-7f3a", label)
    assert (changed.state, changed.spec.labels["a"]) == (JobState.JOB_STATE_STARTING, "b")
    assert changed.etag == (await store.get("quickstart-7f3a")).etag


async def test_a_change_that_changes_nothing_writes_nothing(memory_platform):
    store = JobStore(memory_platform.bus)
    created = await store.create(job())
    assert (await store.change(created.id, lambda _: None)).etag == created.etag


async def test_books_of_a_replaced_activation_are_refused(memory_platform):
    kv = await memory_platform.bus.kv("jobs")
    old, new = Books(kv, "j"), Books(kv, "j")
    assert await old.load() is None
    await old.save(JobLedger(next_index=1))
    await new.load()
    await new.save(JobLedger(next_index=2))
    with pytest.raises(Stale, match="newer activation"):
        await old.save(JobLedger(next_index=3))


async def test_a_write_whose_answer_was_lost_is_recognised(memory_platform):
    kv = await memory_platform.bus.kv("jobs")
    books = Books(kv, "j")
    await books.load()
    await books.save(JobLedger(next_index=1))
    twin = JobLedger(next_index=2)
    await kv.put("j.ledger", twin.SerializeToString(deterministic=True))  # it arrived, the answer did not
    await books.save(twin)
    await books.save(JobLedger(next_index=3))


async def test_orders_of_a_replaced_activation_are_refused_and_equal_ones_are_not_written_twice(
    memory_platform,
):
    kv = await memory_platform.bus.kv("jobs")
    orders = GateRecord(job_id="j", fence=2, rollbacks=1)
    await write_orders(kv, orders)
    written = await kv.get("j.gate")
    await write_orders(kv, orders)
    assert await kv.get("j.gate") == written
    with pytest.raises(Stale, match="fence 2"):
        await write_orders(kv, GateRecord(job_id="j", fence=1, rollbacks=2))


async def test_orders_that_cannot_be_read_are_told_and_written_anew(memory_platform):
    kv = await memory_platform.bus.kv("jobs")
    await kv.put("j.gate", b"\xff")
    orders = GateRecord(job_id="j", fence=2, rollbacks=1)
    with capture_logs() as told:
        await write_orders(kv, orders)
    assert GateRecord.FromString((await kv.get("j.gate")).value) == orders
    ((event, kind, key),) = [(line["event"], line["kind"], line["key"]) for line in told]
    assert (event, kind, key) == ("scheduler.unreadable", "GateRecord", "j.gate")


QUARANTINED = EnvironmentRecord(state=EnvironmentState.ENVIRONMENT_STATE_QUARANTINED, reason="leaks")


@pytest.mark.parametrize(
    ("feed", "record", "signal"),
    [
        ("policies", PolicyRecord(version=3), PolicySeen(PolicyRecord(version=3))),
        ("environments", QUARANTINED, EnvironmentSeen("", withdrawn=True, reason="leaks")),
    ],
)
async def test_a_value_that_cannot_be_read_is_passed_over_and_the_next_one_is_heard(
    memory_platform, feed, record, signal
):
    heard: asyncio.Queue[object] = asyncio.Queue()
    feeds = Feeds(memory_platform, "j", heard.put)
    kv = await memory_platform.bus.kv(feed)
    await kv.put("j", b"\xff")
    with capture_logs() as told:
        listening = asyncio.create_task(getattr(feeds, feed)())
        await eventually(lambda: told)
    await kv.put("j", record.SerializeToString())
    assert await heard.get() == signal
    assert [(line["event"], line["key"]) for line in told] == [("scheduler.unreadable", "j")]
    listening.cancel()


async def test_an_unknown_job_is_refused(memory_platform):
    store = JobStore(memory_platform.bus)
    for name in ("nothing", "nothing.ledger"):
        with pytest.raises(Rejected, match="no job"):
            await store.get(name)


async def test_an_effect_is_repeated_until_the_platform_is_back(memory_platform):
    calls = []

    async def effect():
        calls.append(1)
        await memory_platform.clock.sleep(0)
        if len(calls) < 4:
            raise Unavailable("away")
        return "done"

    task = asyncio.create_task(persistently(memory_platform.clock, effect))
    await memory_platform.clock.advance(5.0)
    assert await task == "done"
    assert len(calls) == 4


def test_the_actor_does_not_undo_what_the_user_decided():
    stored, ours = job(PAUSED), job(RUNNING, resolved=True)
    stored.reason = "paused by the user"
    stored.spec.labels["k"] = "v"
    ours.evals.append(EvalResult(point="before"))
    merge(stored, ours)
    assert (stored.state, stored.reason, stored.spec.labels["k"]) == (PAUSED, "paused by the user", "v")
    assert stored.evals[0].point == "before"
    assert all(domain.HasField("resolved") for domain in stored.spec.domains)


def test_an_ended_job_stays_ended():
    stored = job(JobState.JOB_STATE_CANCELLED)
    merge(stored, job(JobState.JOB_STATE_FINISHING, resolved=True))
    assert stored.state == JobState.JOB_STATE_CANCELLED


def test_a_phase_edit_that_came_after_the_trainer_got_them_is_undone():
    stored = job(JobState.JOB_STATE_PENDING, phases=[policy_phase(steps=99)])
    merge(stored, job(JobState.JOB_STATE_STARTING, resolved=True))
    assert stored.spec.phases[0].steps == 4


def test_edits_keep_the_variants_of_known_domains():
    stored, new = job(RUNNING, resolved=True), job(RUNNING)
    new.spec.domains[0].share = 5
    new.spec.domains.add(name="more", env="more", share=1)
    edit(stored, new, ["spec.domains"])
    assert stored.spec.domains[0].resolved == env("calc")
    assert stored.spec.domains[0].share == 5
    assert not stored.spec.domains[2].HasField("resolved")


def test_domains_cannot_go_or_change_their_environment():
    gone, other = job(RUNNING), job(RUNNING)
    del gone.spec.domains[0]
    other.spec.domains[1].env = "else"
    with pytest.raises(Rejected, match="calc cannot be removed"):
        edit(job(RUNNING), gone, ["spec.domains"])
    with pytest.raises(Rejected, match="cannot change"):
        edit(job(RUNNING), other, ["spec.domains"])


def test_domains_of_an_ended_job_cannot_change():
    with pytest.raises(Conflict):
        edit(job(JobState.JOB_STATE_FAILED), job(), ["spec.domains"])


def test_masks_name_what_can_be_changed():
    assert checked_paths(["spec.labels"]) == ["spec.labels"]
    with pytest.raises(Rejected, match="names no field"):
        checked_paths([])


@pytest.mark.parametrize(
    ("name", "expected"),
    [("Quick Start!", "quick-start"), ("___", "job"), ("a.b_c", "a-b-c"), ("x" * 80, "x" * 32)],
)
def test_ids_are_made_of_what_a_subject_may_hold(name, expected):
    assert slug(name) == expected
