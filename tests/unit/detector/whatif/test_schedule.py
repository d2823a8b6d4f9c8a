import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from megatronapp.detector.whatif import schedule_graph, stage_order, step_seconds


def bubble_seconds(stages, chunks, microbatches):
    """Step time with forward 1 and backward 2 for a whole stage, and all chunks equal."""
    graph = schedule_graph(stages, chunks, microbatches)
    seconds = {"forward": 1 / chunks, "backward": 2 / chunks}
    return step_seconds(graph, np.array([[seconds.get(o.operation, 0.0)] for o in graph.operations]))


@pytest.mark.parametrize(("stages", "microbatches"), [(1, 4), (2, 2), (4, 8), (4, 2), (8, 32)])
def test_1f1b_has_the_textbook_bubble(stages, microbatches):
    assert bubble_seconds(stages, 1, microbatches) == pytest.approx(3 * (microbatches + stages - 1))


@pytest.mark.parametrize(("stages", "chunks", "microbatches"), [(2, 2, 4), (4, 2, 8), (4, 4, 16), (8, 2, 8)])
def test_virtual_stages_divide_the_bubble(stages, chunks, microbatches):
    assert bubble_seconds(stages, chunks, microbatches) == pytest.approx(3 * (microbatches + (stages - 1) / chunks))


def test_an_interleaved_step_of_two_stages_is_as_computed_by_hand():
    assert bubble_seconds(2, 2, 2) == pytest.approx(15 / 2)


@settings(deadline=None, max_examples=50)
@given(st.integers(1, 5), st.integers(1, 3), st.integers(1, 4))
def test_every_stage_runs_each_microbatch_of_each_chunk_once_each_way(stages, chunks, groups):
    microbatches = groups * stages
    for stage in range(stages):
        order = stage_order(stage, stages, chunks, microbatches)
        assert len(order) == len(set(order)) == 2 * chunks * microbatches


def test_a_layout_is_ordered_only_once():
    assert schedule_graph(3, 2, 6) is schedule_graph(3, 2, 6)
