"""A platform in one process, with this test in the roles of scheduler and rollout."""

import asyncio
import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from prometheus_client import CollectorRegistry

from temper.api.common.v1 import common_pb2 as common
from temper.api.job.v1.spec_pb2 import JobSpec, ModelSpec, OptimizerSpec, PhaseSpec, PolicySpec
from temper.api.rollout.v1.rollout_pb2 import GroupRecord, GroupTable, SampleSummary, SampleTokens
from temper.api.trainer.v1.trainer_pb2 import PolicyRecord, StartTraining, StepRecord, WeightManifest
from temper.runtime.blobs import BlobStore
from temper.runtime.clock import SystemClock
from temper.runtime.log.base import EventLog
from temper.runtime.log.memory import MemoryLog
from temper.trainer.config import SnapshotsConfig, TrainerConfig, WorkerConfig
from temper.trainer.engine.fake import FakeEngine
from temper.trainer.metrics import TrainerMetrics
from temper.trainer.session import Session
from temper.trainer.surroundings import Surroundings

JOB = "job7"


def phase(
    name="rl", *, algorithm="grpo", steps=4, groups=2, eta=1, demo=False, publish=1, snapshot=1, **more
):
    return PhaseSpec(
        name=name,
        algorithm=algorithm,
        source=common.PURPOSE_DEMO if demo else common.PURPOSE_TRAIN,
        steps=steps,
        groups_per_step=groups,
        tasks_per_group=1,
        samples_per_task=4,
        max_staleness=eta,
        optimizer=OptimizerSpec(lr=0.01),
        publish_every=publish,
        snapshot_every=snapshot,
        **more,
    )


def model(**more):
    shape: dict[str, Any] = {
        "family": "qwen3",
        "hidden_size": 32,
        "layers": 2,
        "heads": 4,
        "kv_heads": 2,
        "intermediate_size": 48,
        "max_positions": 128,
        "vocab_size": 40,
        "tie_embeddings": True,
        "rope_theta": 10000.0,
    }
    return ModelSpec(**(shape | more))


def spec(*phases, engine="fake", policy=None):
    made = JobSpec(name="t", seed=3, policy=policy or PolicySpec(random=model()), phases=phases or [phase()])
    made.trainer.engine = engine
    return made


@dataclass
class World:
    directory: Path
    bus: Any
    clock: SystemClock = field(default_factory=SystemClock)
    log: EventLog = field(default_factory=MemoryLog)
    registry: CollectorRegistry = field(default_factory=CollectorRegistry)
    snapshots: SnapshotsConfig = field(default_factory=SnapshotsConfig)

    def __post_init__(self):
        self.blobs = BlobStore(f"file://{self.directory}")
        self.metrics = TrainerMetrics(self.registry)

    def around(self, instance="t1", **worker):
        settings: dict[str, Any] = {"poll_s": 0.02, "patience_s": 2.0} | worker
        config = TrainerConfig(worker=WorkerConfig(**settings), snapshots=self.snapshots)
        bus = self.bus.client(instance)
        return Surroundings(config, bus, self.log, self.blobs, self.clock, self.metrics, instance)

    def session(self, job_spec=None, *, engine=None, instance="t1", fence=1, **worker):
        command = StartTraining(job_id=JOB, spec=job_spec or spec(), fence=fence)
        return Session(command, self.around(instance, **worker), engine or FakeEngine())

    async def group(
        self, index, *, version=0, phase=0, rewards=(0, 1, 1, 0), demo=False, table=True, **record
    ):
        """Finish one group as a rollout worker would."""
        rng = np.random.default_rng(index)
        summaries, tokens = [], []
        for number, reward in enumerate(rewards):
            ids = rng.integers(1, 40, size=12)
            mask = bytes([0] * 6 + [1] * 6)
            logprobs = [0.0] * 6 + (-3.0 - rng.random(6)).tolist()
            summary = SampleSummary(
                task_index=index,
                sample_index=number,
                sample_class=common.SAMPLE_CLASS_SCORED,
                solved=reward == 1,
                action_tokens=6,
                total_tokens=12,
                min_version=version,
                max_version=version,
            )
            summary.reward = reward
            summaries.append(summary)
            span = common.VersionSpan(start=0, end=12, version=version)
            tokens.append(SampleTokens(token_ids=ids, mask=mask, logprob_raw=logprobs, versions=[span]))
        made = GroupRecord(
            job_id=JOB,
            group_id=f"{JOB}-{index}",
            index=index,
            purpose=common.PURPOSE_DEMO if demo else common.PURPOSE_TRAIN,
            phase=phase,
            domain="calc",
            samples=summaries,
            **record,
        )
        if table:
            data = GroupTable(group_id=made.group_id, samples=tokens).SerializeToString()
            made.table.CopyFrom(await self.blobs.put(f"groups/{JOB}/{made.group_id}.binpb", data))
        await self.append(made)
        return made

    async def append(self, record):
        await self.log.append("trajectories", JOB, record, id=f"{record.group_id}/{record.purpose}")

    async def record(self):
        entry = await (await self.bus.kv("policies")).get(JOB)
        return PolicyRecord.FromString(entry.value) if entry else None

    async def until(self, condition):
        """Wait for a policy record that satisfies the condition."""
        async with asyncio.timeout(120):
            while True:
                found = await self.record()
                if found is not None and condition(found):
                    return found
                await asyncio.sleep(0.005)

    async def steps(self):
        end, found = await self.log.end("steps", JOB), []
        while end is not None and (not found or found[-1].token != end):
            after = found[-1].token if found else None
            found += await self.log.read("steps", key=JOB, after=after, timeout_s=5.0, max_records=1000)
        return [record.message(StepRecord) for record in found]

    async def weights(self, record):
        """The published bytes of a version."""
        from google.protobuf.json_format import Parse

        manifest = Parse(await self.blobs.get(record.manifest), WeightManifest())
        return [await self.blobs.get(shard) for shard in manifest.shards]

    async def manifest(self, record):
        return json.loads(await self.blobs.get(record.manifest))
