"""kill -9 of a trainer at random instants: what it leaves is what an undisturbed one leaves, bit for bit.

`TEMPER_TEST_KILLS` is the number of kills, `TEMPER_TEST_KILL_SEED` picks their instants.
"""

import asyncio
import os
import random
import time
from contextlib import asynccontextmanager

import pytest
from tests.conformance.processes import running
from tests.conformance.trainer.forked import Forked
from tests.unit.trainer.world import JOB, World, phase, spec

from temper.api.trainer.v1.trainer_pb2 import StartTraining
from temper.runtime import topology
from temper.runtime.blobs import BlobStore
from temper.runtime.bus.nats import Credentials, NatsBus
from temper.runtime.embedded import NatsServer
from temper.runtime.log.jetstream import JetStreamLog
from temper.trainer.snapshot import Snapshots

KILLS = int(os.environ.get("TEMPER_TEST_KILLS", "2"))
SEED = int(os.environ.get("TEMPER_TEST_KILL_SEED", "0"))
STEPS, GROUPS = 5, 2  # of one life of the trainer, of one step
PATIENCE_S = 300
pytestmark = pytest.mark.timeout(600 + 120 * KILLS)


class Platform:
    """A broker, an object store, and a trainer with all levels of snapshots."""

    def __init__(self, root, server, bus, log):
        near = {"snapshots.memory_dir": root / "memory", "snapshots.disk_dir": root / "disk"}
        often = {"snapshots.disk_every": 3, "worker.poll_s": 0.2, "metrics.port": 0}
        settings = {key.replace(".", "__"): value for key, value in (near | often).items()}
        self.root, self.world = root, World(root / "objects", bus, log=log)
        self.trainer = Forked("trainer", server, root, **settings)
        self.fed = 0

    @classmethod
    @asynccontextmanager
    async def at(cls, root):
        server = NatsServer(root / "nats")
        await server.start()
        bus = NatsBus(server.url, name="test", credentials=Credentials(token=server.token))
        try:
            await bus.connect()
            await topology.apply(bus)
            log = JetStreamLog(bus)
            await log.connect()
            yield cls(root, server, bus, log)
            await log.close()
        finally:
            await bus.close()
            await server.stop()

    async def feed(self, steps):
        """Groups for so many steps."""
        for index in range(self.fed, steps * GROUPS):
            rewards = (0, 1, 1, 0) if index % 3 else (1, 1, 0, index % 2)
            await self.world.group(index, version=max(0, index // GROUPS - 1), rewards=rewards)
        self.fed = max(self.fed, steps * GROUPS)

    async def some_steps(self, steps, done, chance):
        """Feed so many steps in all, and return at a random instant of one of the new ones, however slow the machine is."""
        begun, wanted = time.monotonic(), chance.randint(1, STEPS - 1)
        await self.feed(steps)
        await self.until(lambda r: r.step >= min(done + wanted, steps))
        await asyncio.sleep(chance.uniform(0, 2 * (time.monotonic() - begun) / wanted))

    async def until(self, condition):
        """As `World.until`, with room for a loaded machine."""
        async with asyncio.timeout(PATIENCE_S):
            while True:
                record = await self.world.record()
                if record is not None and condition(record):
                    return record
                await asyncio.sleep(0.02)


async def train(root, kills):
    """Everything that a job leaves behind after all but its last step, its trainer killed so many times."""
    chance = random.Random(SEED)
    lives = KILLS + 1
    job = spec(phase(steps=lives * STEPS + 1, groups=GROUPS, eta=8, snapshot=7), engine="torch")
    async with Platform.at(root) as at:
        command = StartTraining(job_id=JOB, spec=job, fence=1)
        await at.world.bus.command(topology.cmd("trainer", JOB), command, id=f"{JOB}/train")
        async with running(at.trainer):
            before, start_s = "", 1.0
            for life in range(1, kills + 1):
                begun = time.monotonic()
                if life % 4 == 0:  # while it starts and restores
                    await asyncio.sleep(chance.uniform(0, 1.5 * start_s))
                else:  # among steps, snapshots and publications
                    await at.feed(
                        life * STEPS
                    )  # one that has made every step says who it is with the next one
                    record = await at.until(lambda r, before=before: r.trainer != before)
                    before, start_s = record.trainer, time.monotonic() - begun
                    await at.some_steps(life * STEPS, record.step, chance)
                at.trainer.kill()
                at.trainer.start()
            await at.feed(lives * STEPS)
            record = await at.until(lambda r: r.step == lives * STEPS)
            assert await at.trainer.stop() == 0
        snapshots = Snapshots(BlobStore((root / "objects").as_uri()), JOB)
        cut = await snapshots.load((await snapshots.steps())[0])
        for near in ("memory", "disk"):
            level = Snapshots(BlobStore((root / near).as_uri()), JOB)
            assert await level.load((await level.steps())[0]) == cut
        return record, cut, await at.world.weights(record), await at.world.steps()


async def test_killed_at_random_instants_it_leaves_what_an_undisturbed_one_leaves_bit_for_bit(tmp_path):
    record, cut, weights, steps = await train(tmp_path / "killed", KILLS)
    other, whole, undisturbed, told = await train(tmp_path / "undisturbed", 0)
    assert record.recoveries >= 1
    assert other.recoveries == 0
    assert weights == undisturbed
    assert cut.engine == whole.engine  # weights, moments, step counts, RNG
    left_out = {"steps_token"}  # a position in a log that is shared with what the killed ones wrote twice
    assert {k: v for k, v in cut.facts.items() if k not in left_out} == {
        k: v for k, v in whole.facts.items() if k not in left_out
    }
    by_number = {
        step.step: step for step in reversed(steps)
    }  # one made again is told again under the same id
    assert [by_number[step.step].metrics for step in told] == [step.metrics for step in told]
    assert [by_number[step.step].group_ids for step in told] == [step.group_ids for step in told]
    trained = [group for step in by_number.values() for group in step.group_ids]
    assert len(trained) == len(set(trained)) == record.consumed_groups == other.consumed_groups
    assert record.settled == other.settled
    assert record.dropped_groups == other.dropped_groups == {}
    assert record.trained_tokens == other.trained_tokens
