import pytest

from megatronapp.core.errors import DataError
from megatronapp.detector.whatif import GraphBuilder


def test_order_never_puts_an_event_before_one_it_waits_for():
    builder = GraphBuilder()
    builder.chain(["c", "b", "a"])
    builder.add("a", ["x"])

    graph = builder.build()

    seen = set()
    for event in graph.events:
        assert set(event.after) <= seen
        seen.update(event.operations)
    assert seen == set(range(4))


def test_operations_that_start_together_make_one_event_that_waits_for_what_each_waits_for():
    builder = GraphBuilder()
    builder.add("send", ["left"])
    builder.add("recv", ["right"])
    builder.together(["send", "recv"])

    graph = builder.build()

    event = graph.events[-1]
    assert {graph.operations[i] for i in event.operations} == {"send", "recv"}
    assert {graph.operations[i] for i in event.after} == {"left", "right"}


def test_a_circle_is_an_error_that_names_it():
    builder = GraphBuilder()
    builder.chain(["a", "b"])
    builder.add("a", ["b"])

    with pytest.raises(DataError, match="circle"):
        builder.build()
