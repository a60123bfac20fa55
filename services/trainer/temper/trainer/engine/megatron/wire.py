"""Frames between the engine and its rank processes: a JSON header and named blocks of bytes. Nothing is pickled.

8 bytes   length of the header, little-endian
header    {"op": ..., "blocks": [[name, size], ...], ...}
blocks    one after another
"""

from __future__ import annotations

import json
import socket
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from temper.trainer.engine.torch.updates import Made
from temper.trainer.samples import Batch, Sample

CHUNK = 1 << 20
NO_VERSIONS = np.zeros(0, dtype=np.int64)


@dataclass(frozen=True, slots=True)
class Frame:
    """One question or one answer."""

    head: Mapping[str, Any]
    """JSON values."""
    blocks: Mapping[str, bytes] = field(default_factory=dict[str, bytes])


def send(to: socket.socket, frame: Frame) -> None:
    """Write a frame. Raises OSError when the other side is gone, TimeoutError at the socket's deadline."""
    sizes = [[name, len(data)] for name, data in frame.blocks.items()]
    header = json.dumps({**frame.head, "blocks": sizes}).encode()
    to.sendall(struct.pack("<Q", len(header)) + header)
    for data in frame.blocks.values():
        to.sendall(data)


def receive(sender: socket.socket) -> Frame:
    """Read a frame. Raises OSError when the other side is gone, TimeoutError at the socket's deadline."""
    (size,) = struct.unpack("<Q", _exactly(sender, 8))
    head: dict[str, Any] = json.loads(_exactly(sender, size))
    blocks = {name: _exactly(sender, length) for name, length in head.pop("blocks")}
    return Frame(head, blocks)


def _exactly(sender: socket.socket, size: int) -> bytes:
    out = bytearray(size)
    view = memoryview(out)
    done = 0
    while done < size:
        got = sender.recv_into(view[done : done + CHUNK])
        if not got:
            raise ConnectionResetError("the other side closed the connection")
        done += got
    return bytes(out)


def pack_arrays(arrays: Mapping[str, Sequence[NDArray[Any]]]) -> tuple[dict[str, Any], dict[str, bytes]]:
    """Lists of one-dimensional arrays of one type each, as (header, blocks)."""
    header: dict[str, Any] = {}
    blocks: dict[str, bytes] = {}
    for name, parts in arrays.items():
        whole = np.concatenate(parts) if parts else np.zeros(0, dtype=np.float32)
        header[name] = {"type": whole.dtype.str, "lengths": [int(part.size) for part in parts]}
        blocks[name] = whole.tobytes()
    return header, blocks


def unpack_arrays(header: Mapping[str, Any], blocks: Mapping[str, bytes]) -> dict[str, list[NDArray[Any]]]:
    """The inverse of ``pack_arrays``."""
    out: dict[str, list[NDArray[Any]]] = {}
    for name, said in header.items():
        whole = np.frombuffer(blocks[name], dtype=np.dtype(said["type"])).copy()
        cuts = np.cumsum(said["lengths"], dtype=np.int64)[:-1]
        out[name] = list(np.split(whole, cuts)) if said["lengths"] else []
    return out


def pack_batch(batch: Batch) -> tuple[dict[str, Any], dict[str, bytes]]:
    """A batch as (header, blocks), with what the ranks need of it."""
    samples = batch.samples
    versions = [sample.versions for sample in samples]
    arrays, blocks = pack_arrays(
        {
            "ids": [sample.ids for sample in samples],
            "mask": [sample.mask for sample in samples],
            "logprobs": [sample.logprobs for sample in samples],
            "versions": [NO_VERSIONS if each is None else each for each in versions],
            "advantages": [batch.advantages],
            "reward": [np.array([sample.reward for sample in samples], dtype=np.float64)],
        }
    )
    header = {
        "arrays": arrays,
        "valid": [sample.valid for sample in samples],
        "group": [sample.group for sample in samples],
        "domain": [sample.domain for sample in samples],
        "shares": dict(batch.shares),
        "number": batch.number,
        "version": batch.version,
    }
    return header, blocks


def unpack_batch(header: Mapping[str, Any], blocks: Mapping[str, bytes]) -> Batch:
    """The inverse of ``pack_batch``."""
    arrays = unpack_arrays(header["arrays"], blocks)
    rewards = arrays["reward"][0].tolist()
    samples = [
        Sample(ids, mask, logprobs, *about, versions=versions if versions.size else None)
        for ids, mask, logprobs, versions, *about in zip(
            *(arrays[name] for name in ("ids", "mask", "logprobs", "versions")),
            rewards,
            *(header[name] for name in ("valid", "group", "domain")),
            strict=True,
        )
    ]
    numbers = int(header["number"]), int(header["version"])
    return Batch(samples, arrays["advantages"][0], header["shares"], *numbers)


PER_ACTION = ("old", "reference", "values", "advantages", "returns", "keep")
"""Arrays of ``Made``."""


def pack_made(made: Made, members: Sequence[int]) -> tuple[dict[str, Any], dict[str, Any], dict[str, bytes]]:
    """What is fixed before an update, for its samples in order: (facts, header of arrays, blocks)."""
    given: dict[str, Mapping[int, NDArray[Any]]] = {name: getattr(made, name) for name in PER_ACTION}
    header, blocks = pack_arrays(
        {f"made/{name}": [by[i] for i in members] for name, by in given.items() if by}
    )
    weights = [made.score_weight.get(i, 0.0) for i in members] if made.score_weight else []
    return {"score_weight": weights, "loss": made.loss}, header, blocks


def unpack_made(facts: Mapping[str, Any], arrays: Mapping[str, Sequence[NDArray[Any]]]) -> Made:
    """The inverse of ``pack_made``; samples are numbered in order."""
    found: dict[str, Any] = {name: dict(enumerate(arrays.get(f"made/{name}", []))) for name in PER_ACTION}
    return Made(**found, score_weight=dict(enumerate(facts["score_weight"])), loss=float(facts["loss"]))
