"""One kernel for the products of several matrices: equal to a product each, forward and backward."""

from __future__ import annotations

import pytest
import torch

from megatronapp.trainer.models.grouped_experts import GroupedProduct

ROWS, INSIDE, OUTSIDE = 10, 16, 24


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_products_and_gradients_are_those_of_a_product_each(dtype: torch.dtype) -> None:
    counts = [4, 0, 6]
    rows, *weights = _leaves(counts, dtype)
    expected_rows, *expected_weights = _leaves(counts, dtype)
    grad = torch.randn(ROWS, OUTSIDE, dtype=dtype)

    output = GroupedProduct.apply(rows, counts, *weights)
    output.backward(grad)

    parts = zip(expected_rows.split(counts), expected_weights, strict=True)
    expected = torch.cat([part @ weight.t() for part, weight in parts])
    expected.backward(grad)
    torch.testing.assert_close(output, expected)
    torch.testing.assert_close(rows.grad, expected_rows.grad)
    for weight, alike in zip(weights, expected_weights, strict=True):
        torch.testing.assert_close(weight.grad, alike.grad)
    assert not weights[1].grad.any(), "of an expert without tokens"


def _leaves(counts: list[int], dtype: torch.dtype) -> list[torch.Tensor]:
    """Rows, and a matrix a group: the same each time."""
    torch.manual_seed(1)
    shapes = [(ROWS, INSIDE), *[(OUTSIDE, INSIDE)] * len(counts)]
    return [torch.randn(shape, dtype=dtype, requires_grad=True) for shape in shapes]
