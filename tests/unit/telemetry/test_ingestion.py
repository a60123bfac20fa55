"""Log -> rows on the memory log and the fake database: nothing lost, nothing twice, whatever is away."""

import asyncio
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry
from tests.unit.telemetry import facts

from temper.api.rollout.v1.rollout_pb2 import ToolUse
from temper.runtime.clock import FakeClock
from temper.runtime.errors import Exhausted, Unavailable
from temper.runtime.log.memory import MemoryLog
from temper.telemetry.actor import Ingestor
from temper.telemetry.config import IngestConfig
from temper.telemetry.engine.base import Bounds
from temper.telemetry.engine.fake import FakeEngine
from temper.telemetry.metrics import Metrics
from temper.telemetry.state import Progress
from temper.telemetry.storage import Storage


def make(clock=None, engine=None, log=None, batch=3):
    clock = clock or FakeClock()
    engine = engine or FakeEngine()
    log = log or MemoryLog(clock)
    storage = Storage(engine, clock, waiting=2)
    metrics = Metrics(CollectorRegistry())
    ingestor = Ingestor(log, storage, clock, IngestConfig(batch=batch), metrics)
    return SimpleNamespace(clock=clock, engine=engine, log=log, storage=storage, ingestor=ingestor)


async def publish(log, first, last):
    for number in range(first, last):
        await log.append("trajectories", "job-1", facts.group(number), id=f"job-1-{number}")


def groups(engine):
    return sorted(row[1] for row in engine.tables.get("groups", {}).values())


async def test_a_pass_stores_everything_in_batches():
    world = make()
    await publish(world.log, 0, 10)
    await world.log.append("steps", "job-1", facts.step(), id="job-1/step/1")
    await world.ingestor.once()
    assert len(groups(world.engine)) == 10
    assert len(world.engine.tables["steps"]) == 1
    assert world.engine.positions() == {"trajectories": "10", "steps": "1"}
    assert world.ingestor.progress.topics["trajectories"].records == 10


async def test_an_empty_log_opens_no_database():
    world = make()
    world.engine.away = True
    await world.ingestor.once()
    assert world.engine.inserts == 0


async def test_a_second_process_goes_on_where_the_first_one_stopped():
    world = make()
    await publish(world.log, 0, 5)
    await world.ingestor.once()
    await publish(world.log, 5, 8)
    after = make(world.clock, world.engine, world.log)
    await after.ingestor.once()
    assert len(groups(world.engine)) == 8
    assert after.ingestor.progress.topics["trajectories"].records == 3


async def test_a_crash_between_rows_and_position_repeats_and_loses_nothing():
    class Crashing(FakeEngine):
        def insert(self, batch):
            if batch.table == "ingestion":
                raise Unavailable("killed here")
            super().insert(batch)

    world = make(engine=Crashing())
    await publish(world.log, 0, 5)
    with pytest.raises(Unavailable):
        await world.ingestor.once()
    whole = FakeEngine()
    whole.tables = world.engine.tables
    await make(world.clock, whole, world.log).ingestor.once()
    assert groups(whole) == [f"job-1-{n}" for n in range(5)]


async def test_a_database_that_comes_back_gets_everything():
    world = make()
    world.engine.away = True
    await publish(world.log, 0, 5)
    running = asyncio.create_task(world.ingestor.run())
    for _ in range(3):
        await world.clock.advance(2.0)
        await asyncio.sleep(0.01)  # the database has threads of its own
    assert groups(world.engine) == []
    world.engine.away = False
    while len(groups(world.engine)) < 5:
        await world.clock.advance(2.0)
        await asyncio.sleep(0.01)
    running.cancel()


async def test_a_foreign_record_is_left_out_and_the_others_stay():
    world = make(batch=10)
    await publish(world.log, 0, 2)
    await world.log.append("trajectories", "job-1", ToolUse(name="x"), id="foreign")
    await publish(world.log, 2, 4)
    await world.ingestor.once()
    assert len(groups(world.engine)) == 4


async def test_fresh_means_everything_that_was_there_when_asked():
    world = make()
    running = asyncio.create_task(world.ingestor.run())
    await world.clock.settle()
    await publish(world.log, 0, 7)
    async with asyncio.timeout(20):
        await world.ingestor.fresh(10.0)
    assert len(groups(world.engine)) == 7
    running.cancel()


async def test_fresh_gives_up_in_time_and_names_what_is_behind():
    world = make()
    world.engine.away = True
    await publish(world.log, 0, 1)
    running = asyncio.create_task(world.ingestor.run())
    asking = asyncio.create_task(world.ingestor.fresh(5.0))
    for _ in range(4):
        await world.clock.advance(2.0)
    with pytest.raises(Unavailable, match="behind: trajectories"):
        await asking
    running.cancel()


async def test_too_many_questions_are_refused():
    world = make()
    world.storage._waiting = 2
    with pytest.raises(Exhausted, match="waiting already"):
        await world.storage.query("SELECT * FROM groups", {}, Bounds(10, 5, 1 << 24, 1))


@given(st.lists(st.sampled_from(["ticket", "begin", "finish"]), max_size=30))
def test_a_ticket_is_served_only_by_a_pass_that_began_after_it(history):
    progress = Progress(["a"])
    tickets, begun, expected = [], [], set()
    for event in history:
        if event == "ticket":
            tickets.append(progress.take_ticket())
        elif event == "begin":
            progress.begin()
            begun = list(tickets)
        else:
            progress.finish()
            expected |= set(begun)
        assert {ticket for ticket in tickets if progress.served(ticket)} == expected
        assert progress.wanted == (len(expected) < len(tickets))


def test_lag_is_known_while_records_wait_and_at_least_one_while_behind():
    progress = Progress(["a"])
    topic = progress.topics["a"]
    assert topic.lag == 0
    topic.end = "9"
    assert topic.lag == 1
    progress.read("a", 5)
    assert topic.lag == 5
    progress.stored("a", "9", 5)
    assert (topic.lag, topic.records) == (0, 5)


def test_positions_are_told_until_they_are_written_down():
    progress = Progress(["a", "b"])
    progress.stored("a", "3", 3)
    written = progress.moved
    progress.stored("a", "5", 2)
    progress.noted(written)
    assert progress.moved == {"a": "5"}
    progress.noted({"a": "5"})
    assert progress.moved == {}
