"""Publication of a job's reward model: a sequence classifier with one label, beside the policy's tokenizer."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from temper.api.common.v1.common_pb2 import BlobRef
from temper.runtime.blobs import BlobStore
from temper.trainer.config import PublicationConfig
from temper.trainer.engine.base import NamedTensor
from temper.trainer.origin import CONFIG, Origin
from temper.trainer.weights import REWARD_MODELS, Publisher

WHOLE = PublicationConfig(full_every=1)


async def publish_reward_model(
    blobs: BlobStore, job_id: str, origin: Origin, step: int, tensors: Sequence[NamedTensor], *, now: float
) -> BlobRef:
    """Put it under the step that it was trained by; returns the manifest."""
    text = json.dumps(classifier(origin.config), indent=2, sort_keys=True).encode()
    config = await blobs.put(f"{REWARD_MODELS}/{job_id}/files/{CONFIG}", text)
    publisher = Publisher(blobs, job_id, {**origin.files, CONFIG: config}, WHOLE, root=REWARD_MODELS)
    return await publisher.publish(step, tensors, now=now)


def classifier(config: Mapping[str, Any]) -> dict[str, Any]:
    """``config.json`` of a reward model on a policy's trunk: a sequence classifier with one label."""
    (name,) = config.get("architectures") or (f"{str(config['model_type']).capitalize()}ForCausalLM",)
    kind = str(name).replace("ForCausalLM", "ForSequenceClassification")
    return {**config, "architectures": [kind], "num_labels": 1, "problem_type": "regression"}
