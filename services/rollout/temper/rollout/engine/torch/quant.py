"""Linear layers in int8, weights and activations both (W8A8): the fast variant, whose logprobs are not for training.

Weights are rounded once, with one scale per output channel; activations at every call, with one scale per *row*. A row's
numbers therefore depend on no neighbour, and the products are exact in integers, so they are equal in every bit whatever
the number of rows. (One scale for all rows would be no faster, and would make a sample depend on its company.)

On CPUs the gain is memory traffic: for matrices that do not fit the cache 2 to 5 times, for tiny ones nothing.
"""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache

import torch
from torch import Tensor

from temper.rollout.engine.torch.weights import Layer, Matrix, Weights

_STEPS = 127  # symmetric int8; -128 stays unused so that signs are treated alike
_ZERO = 128  # oneDNN's fast kernels take unsigned activations: they are shifted by this
_SMALLEST_SCALE = 1e-12  # a row of zeros, as padding is, must not divide by 0


class Int8Matrix:
    """``[in, out]`` in int8 with a scale per column. Called like a linear layer."""

    def __init__(self, matrix: Tensor) -> None:
        self.shape = matrix.shape
        self._scale = matrix.abs().amax(dim=0).div(_STEPS).clamp_(min=_SMALLEST_SCALE)
        rounded = (matrix / self._scale).round_().to(torch.int8).t().contiguous()
        self._multiply = _multiply_packed if _packed_is_exact() else _multiply_plain
        self._weight = _pack(rounded) if self._multiply is _multiply_packed else rounded.t()

    def __call__(self, x: Tensor, addend: Tensor | None = None) -> Tensor:
        """``x [rows, in]`` in fp32 to ``[rows, out]``, plus a bias or a residual."""
        scale = x.abs().amax(dim=1, keepdim=True).div_(_STEPS).clamp_(min=_SMALLEST_SCALE)
        out = self._multiply((x / scale).round_(), self._weight, self._scale).mul_(scale)
        return out if addend is None else out.add_(addend)


def _pack(rounded: Tensor) -> Tensor:
    return torch.ops.onednn.qlinear_prepack(rounded, None)


def _multiply_packed(x: Tensor, weight: Tensor, scale: Tensor) -> Tensor:
    """oneDNN: ``x`` holds whole numbers in [-127, 127]."""
    shifted = x.add_(_ZERO).to(torch.uint8)
    zeros = torch.zeros(len(scale), dtype=torch.int32)
    return torch.ops.onednn.qlinear_pointwise(
        shifted, 1.0, _ZERO, weight, scale, zeros, None, 1.0, 0, torch.float32, "none", [], "none"
    )


def _multiply_plain(x: Tensor, weight: Tensor, scale: Tensor) -> Tensor:
    product = torch._int_mm  # noqa: SLF001  # pyright: ignore[reportPrivateImportUsage] - torch has no other int8 product on CPU
    return product(x.to(torch.int8), weight).mul(scale)


@lru_cache(maxsize=1)
def _packed_is_exact() -> bool:
    """Whether this CPU's oneDNN kernels keep the largest products: those without VNNI saturate in 16 bits."""
    if not torch.backends.mkldnn.is_available():
        return False
    x = torch.full((1, 64), float(_STEPS))
    weight = torch.full((16, 64), _STEPS, dtype=torch.int8)
    product = _multiply_packed(x.clone(), _pack(weight), torch.ones(16))
    return bool((product == 64.0 * _STEPS * _STEPS).all())


def quantise(weights: Weights) -> Weights:
    """The same policy with every linear layer in int8; embeddings, norms and biases stay."""
    layers = tuple(_quantise_layer(layer) for layer in weights.layers)
    return replace(weights, layers=layers, head=_matrix(weights.head))


def _quantise_layer(layer: Layer) -> Layer:
    return replace(
        layer,
        qkv=_matrix(layer.qkv),
        output=_matrix(layer.output),
        gate_up=_matrix(layer.gate_up),
        down=_matrix(layer.down),
    )


def _matrix(matrix: Matrix) -> Int8Matrix:
    assert isinstance(matrix, Tensor), "weights are quantised once"
    return Int8Matrix(matrix)
