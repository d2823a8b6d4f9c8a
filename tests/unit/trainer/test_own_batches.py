"""Batches of a loop of one's own."""

from __future__ import annotations

import pytest
import torch

from megatronapp.trainer import arguments, own_batches
from tests.support.training import TINY


@pytest.mark.parametrize(("flag", "lengths"), [("", [16, 16]), ("--variable-seq-lengths", [4, 10])])
def test_padded_rows_are_as_long_as_asked_for(flag: str, lengths: list[int]) -> None:
    config, _ = arguments.parse(f"{TINY} --train-iters 1 {flag}".split())
    real = torch.tensor([5, 3, 2, 11])
    mask = (torch.arange(12) < real[:, None]).long()

    rows = own_batches.microbatches({"input_ids": torch.ones(4, 12).long(), "attention_mask": mask}, config)

    assert [each["tokens"].shape for each in rows] == [(2, length) for length in lengths]
    assert [each["work"] for each in rows] == [(2 * length, 2 * length**2) for length in lengths]
    assert [each["loss_mask"].sum() for each in rows] == [6, 11]  # the last token of a row has no next one
