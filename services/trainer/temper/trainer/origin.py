"""Where a job's first policy comes from: the files of a checkpoint, or a shape to fill with random numbers."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from temper.api.common.v1.common_pb2 import BlobRef
from temper.api.job.v1.spec_pb2 import JobSpec
from temper.runtime.blobs import BlobStore
from temper.runtime.errors import Rejected
from temper.trainer.engine.base import Engine
from temper.trainer.plan import model_config

CONFIG = "config.json"
WEIGHTS_SUFFIX = ".safetensors"


@dataclass(frozen=True, slots=True)
class Origin:
    """The initial policy, ready to be put into an engine."""

    config: Mapping[str, Any]
    """The model's ``config.json``."""
    weights: Sequence[bytes]
    """safetensors files; none for a random policy."""
    files: Mapping[str, BlobRef]
    """What every published version carries along: config.json, tokenizer.json, temper_chat.json, …"""

    @classmethod
    async def prepare(cls, blobs: BlobStore, job_id: str, spec: JobSpec) -> Origin:
        """Fetch or make it. Raises Rejected for a checkpoint without weights or with an unreadable config.json."""
        if spec.policy.WhichOneof("init") == "random":
            return await cls._random(blobs, job_id, spec)
        given = spec.policy.checkpoint.files
        shards = sorted(name for name in given if name.endswith(WEIGHTS_SUFFIX))
        if CONFIG not in given or not shards:
            raise Rejected(
                "a checkpoint needs config.json and at least one .safetensors file",
                field="policy.checkpoint.files",
                hint=f"given: {', '.join(sorted(given))}",
            )
        try:
            config = json.loads(await blobs.get(given[CONFIG]))
        except ValueError as error:
            raise Rejected(f"config.json is not JSON: {error}", field="policy.checkpoint.files") from None
        files = {name: ref for name, ref in given.items() if _carried(name)}
        return cls(config, [await blobs.get(given[name]) for name in shards], files)

    @classmethod
    async def _random(cls, blobs: BlobStore, job_id: str, spec: JobSpec) -> Origin:
        config = model_config(spec.policy.random)
        text = json.dumps(config, indent=2, sort_keys=True).encode()
        ref = await blobs.put(f"policies/{job_id}/files/{CONFIG}", text)
        files = {name: ref for name, ref in spec.policy.random.files.items() if _carried(name)}
        return cls(config, [], {**files, CONFIG: ref})

    def fill(self, engine: Engine, seed: int) -> None:
        """Put the policy into an engine."""
        if self.weights:
            engine.load(self.config, self.weights)
        else:
            engine.build(self.config, seed=seed)


def _carried(name: str) -> bool:
    """Weights change with every version, and an index of shards would name files that do not exist."""
    return not name.endswith((WEIGHTS_SUFFIX, ".index.json"))
