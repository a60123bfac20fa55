"""Between torch tensors and bytes: safetensors files, and named tensors for publication."""

from collections.abc import Iterator, Mapping, Sequence

import numpy as np
import torch
from safetensors import SafetensorError
from safetensors.torch import load as read_safetensors
from safetensors.torch import save as write_safetensors
from torch import Tensor, nn

from temper.runtime.errors import Rejected
from temper.trainer.engine.base import HEAD, NamedTensor
from temper.trainer.engine.torch.model import Decoder

HEAD_PREFIX = "value_head."
"""Parameters that are the trainer's own and no part of the policy."""
NAMES = {torch.float32: "F32", torch.float16: "F16", torch.bfloat16: "BF16"}


def decode(data: bytes, *, what: str) -> dict[str, Tensor]:
    """Tensors of a safetensors file. Raises Rejected when it is not one."""
    try:
        return read_safetensors(data)
    except SafetensorError as error:
        raise Rejected(f"{what} is not a safetensors file: {error}", field=what) from error


def encode(named: Mapping[str, Tensor]) -> bytes:
    """One safetensors file."""
    return write_safetensors({name: tensor.detach().contiguous() for name, tensor in named.items()})


def named_weights(model: nn.Module, *, tied: bool) -> dict[str, Tensor]:
    """The policy's parameters under their Hugging Face names, in a stable order; a tied head is left out, as checkpoints do."""
    return {
        name: param
        for name, param in model.state_dict().items()
        if not (name.startswith(HEAD_PREFIX) or (tied and name == "lm_head.weight"))
    }


def head_weights(model: nn.Module) -> dict[str, Tensor]:
    """Parameters of the scalar head; none without one."""
    return {name: param for name, param in model.state_dict().items() if name.startswith(HEAD_PREFIX)}


def export(named: Mapping[str, Tensor]) -> Iterator[NamedTensor]:
    """Parameters as raw bytes."""
    for name, param in named.items():
        cpu = param.detach().cpu().contiguous()
        raw = cpu.view(torch.uint8) if cpu.dim() else cpu.reshape(1).view(torch.uint8)
        yield NamedTensor(name, NAMES[cpu.dtype], tuple(cpu.shape), np.asarray(raw.numpy()).tobytes())


def assign(model: nn.Module, files: Sequence[bytes], *, tied: bool) -> None:
    """Copy weights into the model. Raises Rejected when names, shapes or numbers do not fit; half-loaded models do not happen."""
    given: dict[str, Tensor] = {}
    for data in files:
        given.update(decode(data, what="model.safetensors"))
    wanted = named_weights(model, tied=tied)
    if tied:
        given.pop("lm_head.weight", None)
    missing, extra = sorted(wanted.keys() - given.keys()), sorted(given.keys() - wanted.keys())
    if missing or extra:
        raise Rejected(
            f"weights do not fit config.json: {len(missing)} missing {missing[:3]}, {len(extra)} unknown {extra[:3]}",
            field="policy.checkpoint.files",
        )
    for name, param in wanted.items():
        if param.shape != given[name].shape:
            shapes = f"{list(given[name].shape)}, config.json says {list(param.shape)}"
            raise Rejected(f"{name} has shape {shapes}", field="policy.checkpoint.files")
        if not bool(
            torch.isfinite(given[name]).all()
        ):  # rollout workers would refuse every version made from it
            raise Rejected(f"{name} has numbers that are not finite", field="policy.checkpoint.files")
    with torch.no_grad():
        for name, param in wanted.items():
            param.copy_(given[name])


def assign_head(model: Decoder, data: bytes) -> None:
    """Give a model the scalar head of a snapshot. Raises Rejected when it does not fit."""
    given = decode(data, what=HEAD)
    model.grow_head(bias=f"{HEAD_PREFIX}bias" in given)
    wanted = head_weights(model)
    if given.keys() != wanted.keys() or any(given[n].shape != p.shape for n, p in wanted.items()):
        raise Rejected("the snapshot's scalar head does not fit the policy", field=HEAD)
    with torch.no_grad():
        for name, param in wanted.items():
            param.copy_(given[name])
