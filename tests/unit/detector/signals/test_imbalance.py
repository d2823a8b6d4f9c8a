"""Stages that have more to do than the others of their role."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np

from megatronapp.detector.signals.imbalance import of_stages
from megatronapp.detector.steps import RankTable


def ranks(first_stage: list[int] | None) -> RankTable:
    zeros, none = np.zeros(4, np.int64), np.full(4, "")
    return RankTable(
        rank=np.arange(4), pipeline=np.arange(4), data=zeros, tensor=zeros, context=zeros, expert=zeros, node=none,
        gpu_uuid=none, device=none, on_cpu=zeros == 0,
        first_stage=None if first_stage is None else np.array(first_stage),
    )  # fmt: skip


def imbalance(first_stage: list[int] | None, seconds: list[float]) -> list[float]:
    effect: Any = SimpleNamespace(seconds=np.array(seconds))
    return np.exp(of_stages(ranks(first_stage), effect, np.full(4, True))).round(3).tolist()


def test_a_stage_is_compared_with_those_of_its_own_role() -> None:
    assert imbalance([0, 0, 2, 2], [3.0, 3.0, 1.0, 1.5]) == [1.0, 1.0, 0.8, 1.2]
    assert imbalance(None, [3.0, 3.0, 1.0, 1.0]) == [1.5, 1.5, 0.5, 0.5]


def test_a_roles_only_stage_has_none_to_be_compared_with() -> None:
    shown = imbalance([0, 0, 0, 3], [1.0, 1.0, 4.0, 9.0])

    assert shown[:3] == [0.5, 0.5, 2.0]
    assert np.isnan(shown[3])
