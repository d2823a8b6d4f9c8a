"""Layers of both worlds."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from megatronapp.core.errors import UsageError
from megatronapp.core.pipeline.partition import Partition
from megatronapp.core.pipeline.placement import Layout


@given(st.integers(2, 4), st.integers(1, 3), st.integers(1, 3), st.data())
def test_forward_runs_all_layers_but_the_last_parts(stages: int, chunks: int, each: int, data: st.DataObject) -> None:
    layers = stages * chunks * each
    backward = Layout(stages=stages, chunks=chunks, microbatches=stages)
    partition = Partition.of(layers, backward, data.draw(st.integers(1, layers - each)))

    assert sum(partition.stage_layers) == layers - each
    assert max(partition.stage_layers) - min(partition.stage_layers) <= 1
    by_stage = [partition.forward_stage(layer) for layer in range(layers - each)]
    assert [by_stage.count(stage) for stage in range(len(partition.stage_layers))] == list(partition.stage_layers)
    begins = [layer for layer in range(layers) if partition.begins(layer)]
    assert [partition.part(layer) for layer in begins] == list(range(backward.parts))
    with pytest.raises(ValueError, match="the last part"):
        partition.forward_stage(layers - 1)


def test_what_leaves_nothing_to_send_is_refused() -> None:
    with pytest.raises(UsageError, match="--pipeline-model-parallel-size 2 or more"):
        Partition.of(4, Layout(stages=1, microbatches=4), 1)


def test_forward_stages_without_layers_are_refused() -> None:
    with pytest.raises(UsageError, match=r"runs 3 of the 4 layers.*--forward-pipeline-model-parallel-size 3 or less"):
        Partition.of(4, Layout(stages=4, microbatches=4), 4)
