"""What is told of the work of a microbatch, by the flags that say who sees whom."""

from __future__ import annotations

import pytest
import torch

from megatronapp.trainer import arguments, batches
from megatronapp.trainer.models import family_of
from tests.support.training import TINY


@pytest.mark.parametrize(("flags", "squares"), [("", 2 * 16**2), ("--reset-attention-mask", 10**2 + 6**2 + 16**2)])
def test_documents_are_work_of_their_own_where_they_do_not_see_each_other(flags: str, squares: int) -> None:
    config, _ = arguments.parse(f"{TINY} --train-iters 1 {flags}".split())
    two, one = torch.cat([torch.arange(10), torch.arange(6)]), torch.arange(16)
    rows = [dict.fromkeys(("tokens", "labels", "loss_mask", "position_ids"), each) for each in (two, one)]

    microbatch = batches._collate(config, family_of(config.model))(rows)

    assert microbatch["work"] == (32, squares)
