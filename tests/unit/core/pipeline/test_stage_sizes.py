"""How many layers the first and the last stage should have."""

from __future__ import annotations

import numpy as np
import pytest

from megatronapp.core.errors import UsageError
from megatronapp.core.pipeline.arrays import PassTimes
from megatronapp.core.pipeline.placement import Layout
from megatronapp.core.pipeline.stage_sizes import LayerTimes, StageSizes, Vocabulary


def times(layout: Layout, layers: int, *, embedding: float = 0.0, head: float = 0.0) -> PassTimes:
    """F, B and W of a layer take 1, 2 and 1; so much the embedding and the head add to each."""
    of_layers = np.array([1.0, 2.0, 1.0])[:, None, None] * layers / layout.parts
    found = of_layers * np.ones((3, layout.stages, layout.chunks))
    found[:, 0, 0] += embedding
    found[:, -1, -1] += head
    return found


def balanced(layers: int, *, stages: int = 4, chunks: int = 1, embedding: float = 0.0, head: float = 0.0) -> StageSizes:
    layout = Layout(stages=stages, chunks=chunks, microbatches=8)
    return LayerTimes(layout, layers, times(layout, layers, embedding=embedding, head=head)).balanced()


def test_stages_that_hold_layers_alone_stay_equal() -> None:
    assert balanced(32) == StageSizes(8, 8, 8)


def test_the_last_stage_gives_away_what_its_head_takes() -> None:
    # The head takes as long as three layers, so that of 35 layers' work no stage has more than 9.
    assert balanced(32, head=4.0) == StageSizes(8, 6, 9)


def test_both_ends_give_away_what_they_hold_beside_layers() -> None:
    assert balanced(32, embedding=4.0, head=4.0) == StageSizes(6, 6, 10)
    assert balanced(32, stages=2, chunks=2, head=8.0) == StageSizes(18, 14, 0)


def test_sizes_are_whole_chunks() -> None:
    sizes = balanced(32, chunks=2, head=4.0)

    assert [each % 2 for each in (sizes.first, sizes.last, sizes.between)] == [0, 0, 0]
    assert sizes.first + sizes.last + 2 * sizes.between == 32


def test_what_is_added_is_as_many_layers_as_a_stage_has_more() -> None:
    layout = Layout(stages=4, chunks=2, microbatches=8)

    added = LayerTimes(layout, 32, times(layout, 32)).added(StageSizes(10, 6, 8))

    assert added[:, 0].tolist() == [[1, 1], [2, 2], [1, 1]]
    assert added[:, 3].tolist() == [[-1, -1], [-2, -2], [-1, -1]]
    assert not added[:, 1:3].any()


def test_two_stages_are_balanced_where_a_layer_is_known() -> None:
    layout, layer = Layout(stages=2, microbatches=8), np.array([1.0, 2.0, 1.0])
    of_layers = times(layout, 32)

    given = Vocabulary(head=4.0).added_to(layout, of_layers, layer)

    assert LayerTimes(layout, 32, given, layer).balanced() == StageSizes(18, 14, 0)
    assert (given - of_layers)[:, -1, -1].tolist() == [4.0, 12.0, 0.0], "the head's W stays in its B"


@pytest.mark.parametrize(
    ("stages", "layers", "said"),
    [
        (4, 30, "--layers 30 can't be those of 4 equal parts"),
        (4, 0, "--layers 0 can't be those"),
        (4, 4096, "more than any model has"),
        (2, 32, "has none"),
        (1, 32, "one stage has all layers"),
    ],
)
def test_what_a_layer_takes_must_be_told(stages: int, layers: int, said: str) -> None:
    layout = Layout(stages=stages, microbatches=8)

    with pytest.raises(UsageError, match=said):
        LayerTimes(layout, layers, times(layout, 32))
