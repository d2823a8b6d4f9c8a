"""What a line of the log says of speed."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from megatronapp.trainer import arguments
from megatronapp.trainer.models import family_of
from megatronapp.trainer.throughput import Throughput
from tests.support.training import TINY

VOCABULARY = 256


def made(flags: str) -> Throughput:
    config, _ = arguments.parse(f"{TINY} --train-iters 1 {flags}".split())
    family = family_of(config.model)

    def flops_of(length: int) -> float:
        return family.flops_per_sequence(
            replace(config, training=replace(config.training, seq_length=length)), VOCABULARY
        )

    return Throughput(config.training, flops_of)


def test_full_sequences_are_the_same_however_they_are_counted() -> None:
    whole = made("").of(8, None)

    assert made("--variable-seq-lengths").of(8, torch.tensor([128, 128, 8 * 16**2])) == pytest.approx(whole)
    assert whole[0] == 128


def test_what_was_not_counted_is_not_known() -> None:
    assert made("--variable-seq-lengths").of(8, None) == (None, None)
