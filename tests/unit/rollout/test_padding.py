"""The number of rows that makes products independent of their number."""

import pytest
import torch

from temper.rollout.engine.torch import padding
from temper.rollout.engine.torch.padding import row_multiple

SHAPES = [(128, 256), (352, 128), (48, 40)]


@pytest.fixture(autouse=True)
def fresh() -> None:
    padding._wrong_counts.cache_clear()


def test_products_of_padded_rows_do_not_depend_on_their_number():
    multiple = row_multiple(SHAPES)
    for inputs, outputs in SHAPES:
        x, matrix = torch.randn(8 * 16, inputs), torch.randn(inputs, outputs)
        many = torch.mm(x, matrix)
        for count in range(multiple, len(x) + 1, multiple):
            assert torch.equal(torch.mm(x[:count], matrix), many[:count])


@pytest.mark.parametrize(("needed", "chosen"), [(1, 4), (4, 4), (5, 8), (8, 8), (9, 16), (16, 16), (999, 16)])
def test_the_smallest_multiple_whose_products_agree_is_taken(
    monkeypatch: pytest.MonkeyPatch, needed: int, chosen: int
):
    def product(x: torch.Tensor, matrix: torch.Tensor) -> torch.Tensor:
        """A CPU on which fewer rows than ``needed``, but for the many they are compared with, come out otherwise."""
        result = x @ matrix
        return result if len(x) >= min(needed, 260) else result + 1

    monkeypatch.setattr(torch, "mm", product)
    assert row_multiple([(16, 32)]) == chosen


def test_one_shape_that_needs_more_rows_decides_for_all(monkeypatch: pytest.MonkeyPatch):
    real = torch.mm
    monkeypatch.setattr(
        torch, "mm", lambda x, matrix: real(x, matrix) + (matrix.shape[1] == 8 and len(x) < 8)
    )
    assert row_multiple([(16, 32)]) == 4
    assert row_multiple([(16, 32), (16, 8)]) == 8
