import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from megatronapp.detector.whatif import GraphBuilder, replay, schedule_graph, step_seconds

LAYOUTS = st.tuples(st.integers(1, 5), st.integers(1, 3), st.integers(1, 12))


def test_an_operation_ends_after_the_last_one_it_waits_for():
    builder = GraphBuilder()
    builder.add("sum", ["short", "long"])
    graph = builder.build()
    seconds = {"short": 1.0, "long": 3.0, "sum": 0.5}

    ends = replay(graph, np.array([[seconds[name]] for name in graph.operations]))

    assert ends[graph.operations.index("sum"), 0] == 3.5


def test_a_collective_waits_for_the_slowest_replica():
    builder = GraphBuilder()
    builder.chain(["compute", "collective"])
    builder.together(["collective"], across_replicas=True)
    graph = builder.build()

    ends = replay(graph, np.array([[1.0, 4.0], [0.25, 0.5]]))

    assert ends[1].tolist() == [4.25, 4.5]


def test_steps_and_scenarios_are_independent_axes():
    graph = schedule_graph(2, 1, 3)
    generator = np.random.default_rng(0)
    durations = generator.random((len(graph), 5, 2, 4))

    together = step_seconds(graph, durations)

    assert together.shape == (5, 2)
    for step in range(5):
        for scenario in range(2):
            assert together[step, scenario] == step_seconds(graph, durations[:, step, scenario])


def test_durations_must_fit_the_graph():
    with pytest.raises(ValueError, match="durations for a graph of"):
        replay(schedule_graph(2, 1, 2), np.zeros((3, 1)))


@settings(deadline=None, max_examples=50)
@given(LAYOUTS, st.integers(0, 2**32 - 1))
def test_a_slower_operation_never_makes_the_step_shorter(layout, seed):
    graph = schedule_graph(*layout)
    generator = np.random.default_rng(seed)
    durations = generator.random((len(graph), 2))
    slower = durations + (generator.random(durations.shape) < 0.2) * generator.random(durations.shape)

    assert step_seconds(graph, slower) >= step_seconds(graph, durations)


@settings(deadline=None, max_examples=50)
@given(LAYOUTS, st.integers(0, 2**32 - 1))
def test_the_step_is_at_least_every_stages_work_and_at_most_all_work(layout, seed):
    graph = schedule_graph(*layout)
    durations = np.random.default_rng(seed).random((len(graph), 1))
    stage = np.array([operation.stage for operation in graph.operations])

    seconds = step_seconds(graph, durations)

    assert seconds >= np.bincount(stage, durations[:, 0]).max() - 1e-9
    assert seconds <= durations.sum() + 1e-9
