"""Where a job's first policy comes from: the files of a checkpoint, or a shape to fill with random numbers."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

from temper.api.common.v1.common_pb2 import BlobRef
from temper.api.job.v1.spec_pb2 import JobSpec
from temper.runtime.blobs import BlobStore
from temper.runtime.errors import Rejected
from temper.trainer.engine.base import Engine
from temper.trainer.plan import model_config

CONFIG = "config.json"
TOKENIZER = "tokenizer.json"
TEXTS = (TOKENIZER, "temper_chat.json")
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
        if CONFIG not in given or not any(map(_is_weights, given)):
            raise Rejected(
                "a checkpoint needs config.json and at least one .safetensors file",
                field="policy.checkpoint.files",
                hint=f"given: {', '.join(sorted(given))}",
            )
        config = await json_object(blobs, given, CONFIG, "policy.checkpoint.files")
        await _check_texts(blobs, given, "policy.checkpoint.files")
        files = {name: ref for name, ref in given.items() if _carried(name)}
        return cls(config, await weights_among(blobs, given), files)

    @classmethod
    async def _random(cls, blobs: BlobStore, job_id: str, spec: JobSpec) -> Origin:
        config = model_config(spec.policy.random)
        await _check_texts(blobs, spec.policy.random.files, "policy.random.files")
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


async def weights_among(blobs: BlobStore, files: Mapping[str, BlobRef]) -> list[bytes]:
    """The safetensors files of a checkpoint, in the order of their names."""
    return [await blobs.get(files[name]) for name in sorted(filter(_is_weights, files))]


def _is_weights(name: str) -> bool:
    return name.endswith(WEIGHTS_SUFFIX)


async def _check_texts(blobs: BlobStore, given: Mapping[str, BlobRef], field: str) -> None:
    """Raise Rejected for texts that no rollout worker could read: there it would look like workers that are slow."""
    for name in TEXTS:
        content = await json_object(blobs, given, name, field) if name in given else {}
        if name == TOKENIZER and name in given and not isinstance(content.get("model"), dict):
            raise Rejected(
                f"{name} has no model", field=field, hint="a file of the tokenizers library is wanted"
            )


async def json_object(
    blobs: BlobStore, given: Mapping[str, BlobRef], name: str, field: str
) -> dict[str, Any]:
    """A JSON object among the files. Raises Rejected if it is none."""
    try:
        value: Any = json.loads(await blobs.get(given[name]))
    except (ValueError, RecursionError) as error:
        raise Rejected(f"{name} is not JSON: {error}", field=field) from None
    if not isinstance(value, dict):
        raise Rejected(f"{name} is no JSON object", field=field)
    return cast("dict[str, Any]", value)


def _carried(name: str) -> bool:
    """Weights change with every version, and an index of shards would name files that do not exist."""
    return not name.endswith((WEIGHTS_SUFFIX, ".index.json"))
