"""A microbatch is cut to its longest sequence."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
import torch

from megatronapp.trainer.data.lengths import Cut


def batch(lengths: Sequence[int], whole: int = 16) -> dict[str, torch.Tensor]:
    mask = torch.stack([(torch.arange(whole) < length).float() for length in lengths])
    return {"tokens": torch.arange(len(lengths) * whole).view(-1, whole), "mask": mask, "order": torch.zeros(len(mask))}


@pytest.mark.parametrize(
    ("lengths", "multiple", "left"),
    [([3, 5], 1, 5), ([3, 5], 4, 8), ([0, 0], 1, 1), ([16, 1], 1, 16), ([13, 1], 10, 16)],
)
def test_what_is_left_holds_the_longest_row_and_can_be_shared(lengths: list[int], multiple: int, left: int) -> None:
    whole = batch(lengths)

    cut = Cut("mask", multiple)(whole)

    assert torch.equal(cut["tokens"], whole["tokens"][:, :left])
    assert cut["mask"].sum() == sum(lengths)
    assert cut["order"].shape == (2,)
    assert cut["work"] == (2 * left, 2 * left * left)
