"""Small environments as bundles, and a host of fakes: what several tests of the service stand on."""

import hashlib
import io
import json
import tarfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from prometheus_client import CollectorRegistry

from temper.api.common.v1 import common_pb2
from temper.api.sandbox.v1 import sandbox_pb2
from temper.runtime.blobs import BlobStore
from temper.runtime.clock import Clock, FakeClock
from temper.sandbox.branching import Branches
from temper.sandbox.control import Control
from temper.sandbox.engine.base import Backend, Limits
from temper.sandbox.engine.fake import FakeBackend
from temper.sandbox.environments import EnvironmentHost
from temper.sandbox.environments import Settings as EnvironmentSettings
from temper.sandbox.episodes import Episodes
from temper.sandbox.host import SandboxHost
from temper.sandbox.metrics import Metrics
from temper.sandbox.pool import WarmPool
from temper.sandbox.tenancy import Settings

MANIFEST = """
name = "sum"
version = "1.0.0"
[reward]
min = 0.0
max = 1.0
[limits]
setup_s = 60.0
task_s = 60.0
verify_s = 60.0
[[tools]]
name = "python"
"""

SUM = """
class Environment:
    def __init__(self, params):
        self.offset = int(params.get("offset", 0))

    def task(self, split, index):
        return {"prompt": f"{index} + {self.offset}", "private": {"answer": str(index + self.offset)}, "tags": {"split": split}}

    def oracle(self, task, style):
        if style == "tool":
            return [{"call": {"name": "python", "arguments": {"code": task["prompt"]}}}, {"answer": task["private"]["answer"]}]
        return [{"answer": task["private"]["answer"]}]

    def score(self, task, answer, transcript):
        return 1.0 if answer == task["private"]["answer"] else 0.0
"""

LIMITS = Limits(wall_s=5.0)


def tar(files: Mapping[str, str | bytes]) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as archive:
        for name, content in files.items():
            data = content.encode() if isinstance(content, str) else content
            member = tarfile.TarInfo(name)
            member.size = len(data)
            archive.addfile(member, io.BytesIO(data))
    return buffer.getvalue()


class Bundles:
    """A blob store of bundles in memory."""

    def __init__(self) -> None:
        self.content: dict[str, bytes] = {}
        self.fetched = 0

    def add(
        self, source: str = SUM, manifest: str = MANIFEST, params: dict[str, Any] | None = None
    ) -> common_pb2.EnvRef:
        data = tar({"env.toml": manifest, "env.py": source})
        digest = hashlib.sha256(data).hexdigest()
        self.content[digest] = data
        text = json.dumps(params or {})
        return common_pb2.EnvRef(
            name="sum",
            version="1.0.0",
            digest=hashlib.sha256(data + text.encode()).hexdigest(),
            bundle=common_pb2.BlobRef(key="bundle", sha256=digest, size=len(data)),
            params_json=text,
        )

    async def fetch(self, ref: common_pb2.BlobRef) -> bytes:
        self.fetched += 1
        return self.content[ref.sha256]


class World:
    """A sandbox host over the fake backend."""

    def __init__(
        self,
        path: Path,
        clock: Clock,
        *,
        slots: int = 4,
        warm: int = 0,
        wait_s: float = 0.0,
        backend: Backend | None = None,
        allow_weak: bool = True,
    ) -> None:
        self.bundles = Bundles()
        self.fake = FakeBackend(slots=slots + warm)
        self.backend: Backend = backend or self.fake
        self.records: list[sandbox_pb2.SessionRecord] = []
        self.metrics = Metrics(CollectorRegistry())
        self.pool = WarmPool(self.backend, LIMITS, warm)
        self.host = SandboxHost(
            "host-1",
            self.backend,
            self.pool,
            Settings(slots, lease_s=100.0, admission_wait_s=wait_s),
            clock=clock,
            metrics=self.metrics,
            publish=self.records.append,
        )
        self.environments = EnvironmentHost(
            self.bundles.fetch, EnvironmentSettings(path / "bundles", max_workers=2)
        )
        self.episodes = Episodes(
            self.host, self.environments, LIMITS, allow_weak=allow_weak, clock=clock, metrics=self.metrics
        )

        self.branches = Branches(self.host, clock, lease_s=100.0)
        self.blobs = BlobStore(f"file://{path / 'objects'}")
        self.control = Control(self.host, self.branches, LIMITS, self.blobs)

    async def close(self) -> None:
        await self.environments.close()
        await self.host.drain()


def world(path: Path, **options: Any) -> tuple[World, FakeClock]:
    clock = FakeClock()
    return World(path, clock, **options), clock
