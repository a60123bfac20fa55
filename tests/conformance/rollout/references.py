"""What the numbers of each engine must be, computed without it: logits after a context, one forward at a time."""

import hashlib
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
import transformers
from numpy.typing import NDArray
from safetensors.torch import load
from tests.conformance.rollout.engines import VOCAB

from temper.rollout.engine.base import PolicyFiles
from temper.rollout.engine.made_up import made_up_logits

Logits = Callable[[Sequence[int]], NDArray[np.float64]]


def of_hugging_face(files: PolicyFiles) -> Logits:
    """``transformers`` itself, eager attention, fp32, no cache."""
    fields: dict[str, Any] = {**files.config, "attn_implementation": "eager"}
    config = transformers.LlamaConfig(**fields)
    model = transformers.LlamaForCausalLM(config).eval().float()
    model.load_state_dict(load(files.shards[0]))

    def logits(tokens: Sequence[int]) -> NDArray[np.float64]:
        with torch.inference_mode():
            return model(torch.tensor([list(tokens)])).logits[0, -1].double().numpy()

    return logits


def of_bytes(files: PolicyFiles) -> Logits:
    """The made-up policy of the fake engine."""
    return _made_up(hashlib.sha256(b"".join(files.shards)))


def of_tensors(files: PolicyFiles) -> Logits:
    """The made-up policy of the TensorRT-LLM double, which sees tensors and no files."""
    digest = hashlib.sha256()
    for name, tensor in sorted(load(files.shards[0]).items()):
        digest.update(name.encode() + tensor.contiguous().numpy().tobytes())
    return _made_up(digest)


def _made_up(digest: "hashlib._Hash") -> Logits:
    fingerprint = int.from_bytes(digest.digest()[:8], "big")
    return lambda tokens: made_up_logits(tokens, len(tokens), fingerprint, VOCAB)


REFERENCES: dict[str, Callable[[PolicyFiles], Logits]] = {
    "torch": of_hugging_face,
    "fake": of_bytes,
    "tensorrt_llm": of_tensors,
}
