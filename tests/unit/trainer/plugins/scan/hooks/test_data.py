"""The work that a batch brings, wherever it comes from: what takes longer because it is more is not slow."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from megatronapp.trainer.plugins.scan.hooks.data import work_of

ROWS, LENGTH = 3, 8
TOKENS = torch.zeros(ROWS, LENGTH, dtype=torch.long)


@pytest.mark.parametrize(
    ("batch", "work"),
    [
        ({"tokens": TOKENS, "work": (20, 130)}, (20, 130)),
        ({"tokens": TOKENS}, (ROWS * LENGTH, ROWS * LENGTH**2)),
        ({"input_ids": TOKENS}, (ROWS * LENGTH, ROWS * LENGTH**2)),
        ({"images": TOKENS}, (0, 0)),
        ({"tokens": TOKENS[0]}, (0, 0)),
        ([TOKENS], (0, 0)),
    ],
    ids=["as it says", "tokens", "input_ids", "neither", "no rows", "no mapping"],
)
def test_a_batch_of_any_source_brings_its_work(batch: Any, work: tuple[int, int]) -> None:
    assert work_of(batch) == work
