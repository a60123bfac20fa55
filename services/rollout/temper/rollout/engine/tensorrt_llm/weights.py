"""A policy's tensors: checked when they are staged, and handed to the workers as CUDA IPC handles."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from safetensors import SafetensorError
from safetensors.torch import load as parse_safetensors
from torch import Tensor

from temper.rollout.engine.base import PolicyFiles
from temper.rollout.engine.tensorrt_llm.names import Library
from temper.runtime.errors import Rejected

_BUCKET_BYTES = 1 << 30  # tensors on the device beside the model's own, per worker, while an update runs

Handles = Mapping[str, list[tuple[str, Any]]]
"""Device UUID to (tensor's name, handle) pairs, as ``WorkerExtension.update_weights`` takes them."""


@dataclass(frozen=True, slots=True)
class Shared:
    """Handles, and the memory behind them, which must live until the workers have copied it."""

    handles: Handles
    """For the workers."""
    memory: tuple[Tensor, ...]
    """Referenced, so that it stays."""


class Share(Protocol):
    """How tensors reach the workers."""

    def __call__(self, library: Library, tensors: Mapping[str, Tensor], workers: int) -> Shared:
        """Handles for each worker's device."""
        ...


def share_by_cuda_ipc(library: Library, tensors: Mapping[str, Tensor], workers: int) -> Shared:
    """A copy of every tensor on each worker's device, and its IPC handle under that device's UUID.

    The handle is ``(function, arguments)`` of ``reduce_tensor``: the worker puts its own device number in and calls it.
    Ray carries it as it is.
    """
    from torch.multiprocessing.reductions import reduce_tensor  # CUDA only, with the vendor's image

    memory: list[Tensor] = []
    handles: dict[str, list[tuple[str, Any]]] = {}
    for device in range(workers):
        copies = {name: tensor.to(f"cuda:{device}") for name, tensor in tensors.items()}
        memory.extend(copies.values())
        handles[library.device_uuid(device)] = [(name, reduce_tensor(copy)) for name, copy in copies.items()]
    torch.cuda.synchronize()
    return Shared(handles, tuple(memory))


def read_tensors(files: PolicyFiles, like: Mapping[str, torch.Size] | None) -> dict[str, Tensor]:
    """Parse and check. ``like``: names and shapes of the version before, which must be the same.

    The vendor takes a partial update without a word and keeps old numbers where none come, so completeness is checked
    here: every layer has what layer 0 has. Raises ``Rejected`` naming the tensor.
    """
    found: dict[str, Tensor] = {}
    for number, shard in enumerate(files.shards):
        try:
            tensors = parse_safetensors(shard)
        except SafetensorError as error:
            raise Rejected(f"weights: shard {number} is not a safetensors file: {error}") from error
        for name, tensor in tensors.items():
            if name in found:
                raise Rejected(f"weights: tensor {name} is in two shards")
            if not bool(torch.isfinite(tensor).all()):
                raise Rejected(f"weights: tensor {name} has numbers that are not finite")
            found[name] = tensor
    _check_complete(found, files.config)
    for name, shape in (like or {}).items():
        if name not in found or found[name].shape != shape:
            raise Rejected(
                f"weights: tensor {name} of version {files.version} is not as in the version before"
            )
    return found


def buckets(tensors: Mapping[str, Tensor], most: int = _BUCKET_BYTES) -> Iterator[dict[str, Tensor]]:
    """Tensors in portions of at most ``most`` bytes, or one tensor."""
    portion: dict[str, Tensor] = {}
    size = 0
    for name, tensor in tensors.items():
        if portion and size + tensor.nbytes > most:
            yield portion
            portion, size = {}, 0
        portion[name] = tensor
        size += tensor.nbytes
    if portion:
        yield portion


def _check_complete(found: Mapping[str, Tensor], config: Mapping[str, Any]) -> None:
    embedding = found.get("model.embed_tokens.weight")
    if embedding is None:
        raise Rejected("weights: tensor model.embed_tokens.weight is missing")
    if embedding.shape[0] != config["vocab_size"]:
        raise Rejected(
            f"weights: tensor model.embed_tokens.weight has {embedding.shape[0]} rows, config.json says "
            f"vocab_size {config['vocab_size']}"
        )
    if not config.get("tie_word_embeddings") and "lm_head.weight" not in found:
        raise Rejected("weights: tensor lm_head.weight is missing")
    first = _layer(found, 0)
    for index in range(int(config["num_hidden_layers"])):
        absent = first - _layer(found, index)
        if absent or not first:
            name = min(absent, default="self_attn.q_proj.weight")
            raise Rejected(f"weights: tensor model.layers.{index}.{name} is missing")


def _layer(names: Iterable[str], index: int) -> set[str]:
    prefix = f"model.layers.{index}."
    return {name.removeprefix(prefix) for name in names if name.startswith(prefix)}
