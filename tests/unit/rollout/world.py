"""A small world around a rollout worker: a policy that can be published, and a sandbox host that knows one game.

The game: task i asks ``i+1=``; the tool ``python`` evaluates sums; the reward is 1 for the right number.
"""

import asyncio
import hashlib
import json
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from google.protobuf import json_format
from safetensors.numpy import save

from temper.api.common.v1 import common_pb2 as common
from temper.api.rollout.v1.rollout_pb2 import (
    EpisodeLimits,
    GroupCommand,
    GroupRecord,
    GroupTable,
    SamplingParams,
)
from temper.api.sandbox.v1 import sandbox_pb2 as sandbox
from temper.api.trainer.v1.trainer_pb2 import PolicyRecord, TensorEntry, WeightManifest
from temper.rollout.actor import RolloutActor
from temper.rollout.chat import byte_chat, byte_tokenizer
from temper.rollout.codec import Codec
from temper.rollout.config import RolloutConfig
from temper.rollout.engine.fake import FakeEngine
from temper.rollout.engine.made_up import Lengths
from temper.rollout.metrics import RolloutMetrics
from temper.rollout.permits import Permits
from temper.rollout.policies import Policies
from temper.rollout.sandbox import Sandboxes
from temper.rollout.state import Worker
from temper.runtime import topology
from temper.runtime.blobs import BlobStore
from temper.runtime.bus.base import Bus
from temper.runtime.bus.memory import MemoryBus
from temper.runtime.clock import Clock
from temper.runtime.log.base import EventLog
from temper.runtime.telemetry import new_registry

JOB = "job-1"
ENV = common.EnvRef(name="sums", version="1.0.0", digest="0" * 64)
PYTHON_SCHEMA = {
    "type": "object",
    "properties": {"code": {"type": "string"}},
    "required": ["code"],
    "additionalProperties": False,
}


def byte_codec() -> Codec:
    return Codec.read({"tokenizer.json": byte_tokenizer(), "temper_chat.json": byte_chat()})


@dataclass
class SandboxHost:
    """Answers Materialize, Step and Finish, and remembers what it was asked."""

    bus: Bus
    host: str = "h1"
    reward: float | None = None  # overrides the verifier
    live: set[str] = field(default_factory=set)
    calls: list[str] = field(default_factory=list)
    open: asyncio.Event = field(default_factory=asyncio.Event)
    answers: dict[str, str] = field(default_factory=dict)

    async def serve(self) -> None:
        self.open.set()
        for where in ("any", self.host):
            ask = [topology.rpc("sandbox", where, method) for method in ("Materialize", "Step", "Finish")]
            await self.bus.serve(ask[0], sandbox.MaterializeRequest, self.materialize, queue="sandbox")
            await self.bus.serve(ask[1], sandbox.StepRequest, self.step, queue="sandbox")
            await self.bus.serve(ask[2], sandbox.FinishRequest, self.finish, queue="sandbox")

    async def materialize(
        self, request: sandbox.MaterializeRequest, _: object
    ) -> sandbox.MaterializeResponse:
        self.calls.append("materialize")
        await self.open.wait()
        tasks = [sandbox.TaskView(task_index=i, prompt=f"{i}+1=") for i in request.task_indices]
        for task, style in zip(tasks, request.oracle_styles, strict=False):
            answer = str(task.task_index + 1) if style != "wrong" else "no idea"
            if style == "tool":
                code = json.dumps({"code": f"{task.task_index}+1"})
                task.oracle.add().call.CopyFrom(sandbox.ToolCall(name="python", arguments_json=code))
            if style != "none":
                task.oracle.add(answer=answer)
        tool = sandbox.ToolSpec(name="python", parameters_schema_json=json.dumps(PYTHON_SCHEMA))
        return sandbox.MaterializeResponse(
            tasks=tasks, tools=[tool], reward_min=0, reward_max=1, host=self.host
        )

    async def step(self, request: sandbox.StepRequest, _: object) -> sandbox.StepResponse:
        self.live.add(request.session_id)
        self.calls.append(request.command_id)
        code = json.loads(request.call.arguments_json)["code"]
        left, _, right = code.partition("+")
        seen = str(int(left) + int(right)) if left.isdigit() and right.isdigit() else "error"
        result = sandbox.CommandResult(outcome=sandbox.OUTCOME_OK)
        return sandbox.StepResponse(host=self.host, observation=seen, result=result)

    async def finish(self, request: sandbox.FinishRequest, _: object) -> sandbox.FinishResponse:
        self.live.discard(request.session_id)
        if request.abandon:
            return sandbox.FinishResponse(infra_error="abandoned", host=self.host)
        self.answers[request.session_id] = request.answer
        right = float(request.answer == str(request.task_index + 1))
        reward = right if self.reward is None else self.reward
        return sandbox.FinishResponse(reward=reward, solved=reward == 1, host=self.host)


@dataclass
class Publisher:
    """Publishes policies as a trainer does."""

    blobs: BlobStore
    bus: Bus

    async def publish(
        self, version: int, *, job: str = JOB, seed: int = 0, fence: int = 1, spoil: str = "", **record: Any
    ) -> None:
        value = np.random.default_rng(seed).normal(size=(4, 4)).astype(np.float32)
        shard = await self.blobs.put(f"weights/{job}/{version}.safetensors", save({"w": value}))
        digest = hashlib.sha256(b"other" if spoil == "checksum" else value.tobytes()).hexdigest()
        entry = TensorEntry(name="w", dtype="F32", shape=[4, 4], sha256=digest)
        manifest = WeightManifest(job_id=job, version=version, shards=[shard], tensors=[entry])
        if spoil == "partial":
            manifest.tensors.add(name="v", dtype="F32", shape=[1], sha256=digest)
        config = json.dumps({"vocab_size": 264, "max_position_embeddings": 512}).encode()
        files = {"config.json": config, "tokenizer.json": byte_tokenizer(), "temper_chat.json": byte_chat()}
        for name, content in files.items():
            manifest.files[name].CopyFrom(await self.blobs.put(f"files/{name}", content))
        raw = json_format.MessageToJson(manifest).encode()
        ref = await self.blobs.put(f"weights/{job}/{version}.json", raw)
        told = PolicyRecord(job_id=job, version=version, manifest=ref, fence=fence, **record)
        await (await self.bus.kv("policies")).put(job, told.SerializeToString())


@dataclass
class World:
    """Everything, wired as ``__main__`` does it."""

    bus: MemoryBus
    log: EventLog
    blobs: BlobStore
    clock: Clock
    host: SandboxHost
    publisher: Publisher
    worker: Worker
    policies: Policies
    permits: Permits
    metrics: RolloutMetrics
    actor: RolloutActor
    tasks: list[asyncio.Task[None]] = field(default_factory=list)

    def start(self) -> None:
        self.tasks = [asyncio.create_task(self.policies.watch()), asyncio.create_task(self.actor.run())]

    async def stop(self) -> None:
        await self.actor.drain()
        await self.policies.close()
        for task in self.tasks:
            task.cancel()
        await asyncio.gather(*self.tasks, return_exceptions=True)

    async def order(self, command: GroupCommand) -> None:
        await self.bus.command(topology.cmd("rollout", command.job_id), command, id=command.group_id)

    async def records(self, count: int = 1) -> list[GroupRecord]:
        """The first ``count`` records of the job."""
        found: list[GroupRecord] = []
        token = None
        while len(found) < count:
            for record in await self.log.read("trajectories", key=JOB, after=token, timeout_s=5):
                token = record.token
                found.append(record.message(GroupRecord))
        return found

    async def table(self, record: GroupRecord) -> GroupTable:
        return GroupTable.FromString(await self.blobs.get(record.table))


async def make_world(
    bus: MemoryBus, log: EventLog, directory: object, clock: Clock, *, lengths: float = 6, **worker
) -> World:
    blobs = BlobStore(f"file://{directory}/objects")
    config = RolloutConfig.model_validate({"worker": worker})
    state = Worker(slots=config.worker.groups, policies=config.worker.policies)
    policies = Policies(
        bus, blobs, clock, state, lambda: FakeEngine(clock, lengths=Lengths(lengths, 0.3)), "w1"
    )
    sandboxes = Sandboxes(bus, clock, call_timeout_s=5, lease_s=5, host_wait_s=5)
    metrics = RolloutMetrics(new_registry())
    permits = Permits(
        config.worker.episodes, lambda: [engine.stats() for engine in policies.engines().values()]
    )
    actor = RolloutActor(config, bus, log, blobs, clock, state, policies, sandboxes, permits, metrics, "w1")
    host = SandboxHost(bus)
    await host.serve()
    return World(
        bus, log, blobs, clock, host, Publisher(blobs, bus), state, policies, permits, metrics, actor
    )


def group(
    index: int = 0, *, purpose: common.Purpose = common.PURPOSE_TRAIN, tasks=(7,), samples: int = 4, **fields
) -> GroupCommand:
    command = GroupCommand(
        job_id=JOB,
        group_id=f"{JOB}-{index}",
        index=index,
        purpose=purpose,
        env=ENV,
        split="train",
        task_indices=tasks,
        samples_per_task=samples,
        seed=index,
        sampling=SamplingParams(temperature=1, top_p=1, max_tokens_per_turn=32),
        limits=EpisodeLimits(max_turns=3, max_tokens=128, max_observation_bytes=64, group_deadline_s=60),
    )
    for name, value in fields.items():
        getattr(command, name).extend(value) if isinstance(value, list) else setattr(command, name, value)
    return command
