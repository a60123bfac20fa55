"""Int8 layers: how exact they are, and that no row depends on another."""

import pytest
import torch

from temper.rollout.engine.torch import quant
from temper.rollout.engine.torch.quant import Int8Matrix


def random(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


@pytest.fixture(params=["packed", "plain"])
def kernel(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Both kernels: the one that oneDNN has for some CPUs, and the one that works on all."""
    if request.param == "plain":
        monkeypatch.setattr(quant, "_packed_is_exact", lambda: False)
    elif not quant._packed_is_exact():
        pytest.skip("oneDNN saturates on this CPU")
    return request.param


def test_the_product_is_that_of_the_rounded_numbers(kernel: str):
    matrix, x = random(96, 40), random(5, 96, seed=1)
    columns = (matrix.abs().amax(0) / 127).double()
    rows = (x.abs().amax(1, keepdim=True) / 127).double()
    expected = ((x / rows).round() @ (matrix / columns).round().double()) * columns * rows
    found = Int8Matrix(matrix)(x)
    assert (found - expected).abs().max() < 1e-4
    bias = random(40, seed=2)
    assert torch.equal(Int8Matrix(matrix)(x, bias), found + bias)


def test_the_error_of_gaussian_weights_is_about_one_percent(kernel: str):
    matrix, x = random(512, 256), random(64, 512, seed=1)
    exact = x @ matrix
    assert (Int8Matrix(matrix)(x) - exact).norm() / exact.norm() < 0.015


def test_a_row_is_equal_in_every_bit_whatever_its_company(kernel: str):
    """Also beside a row a thousand times larger, which a scale for all rows would drown it in."""
    layer, x = Int8Matrix(random(160, 48)), random(40, 160, seed=3)
    x[7] *= 1000
    together = layer(x)
    for count in (1, 2, 3, 7, 8, 15, 16, 17, 40):
        assert torch.equal(layer(x[:count].clone()), together[:count])
    assert torch.equal(layer(x[8:9].clone()), together[8:9])


def test_the_input_is_left_alone_and_zeros_stay_zero(kernel: str):
    layer, x = Int8Matrix(random(32, 16)), random(3, 32)
    x[1] = 0
    before = x.clone()
    assert layer(x)[1].eq(0).all()
    assert torch.equal(x, before)


def test_a_column_of_zeros_gives_zero(kernel: str):
    matrix = random(32, 16)
    matrix[:, 3] = 0
    assert Int8Matrix(matrix)(random(4, 32))[:, 3].eq(0).all()
