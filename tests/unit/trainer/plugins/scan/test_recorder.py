"""The recorder in Python. The native one: tests/unit/scan."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from megatronapp.trainer.plugins.scan.clock import now_ns
from megatronapp.trainer.plugins.scan.operations import Operation
from megatronapp.trainer.plugins.scan.recorder import Recorder, Spans
from megatronapp.trainer.plugins.scan.recorders import make_recorder

MAKERS: list[Callable[[torch.device], Recorder]] = [make_recorder]


@pytest.fixture(params=MAKERS, ids=lambda maker: maker.__name__)
def recorder(request: pytest.FixtureRequest) -> Recorder:
    return request.param(torch.device("cpu"))


def resolve(recorder: Recorder) -> Spans:
    sealed = recorder.seal()
    assert sealed.wait(1.0)
    return sealed.resolve()


def names(spans: Spans) -> list[Operation]:
    return [Operation(name) for name in spans.columns["name"]]


def spin(seconds: float) -> None:
    until = now_ns() + seconds * 1e9
    while now_ns() < until:
        pass


def test_spans_come_in_the_order_in_which_they_end(recorder: Recorder) -> None:
    recorder.begin(Operation.STEP)
    recorder.begin(Operation.FORWARD)
    recorder.end_work(128, 4096)
    recorder.end()

    spans = resolve(recorder)

    assert names(spans) == [Operation.FORWARD, Operation.STEP]
    assert spans.columns["tokens"].tolist() == [128, 0]
    assert spans.columns["length_squares"].tolist() == [4096, 0]
    assert spans.columns["first"].tolist() == [0, 0]
    assert spans.columns["peer"].tolist() == [-1, -1]
    assert (spans.enqueue == 0).all()


def test_a_span_has_wall_time_and_cpu_time(recorder: Recorder) -> None:
    before = now_ns()
    recorder.begin(Operation.FORWARD)
    spin(0.01)
    recorder.end()

    spans = resolve(recorder)

    assert before <= spans.start[0] <= now_ns()
    assert spans.duration[0] >= 10_000_000
    assert 0 < spans.cpu[0] <= spans.duration[0] + 1_000_000


def test_the_context_is_the_one_at_the_spans_end(recorder: Recorder) -> None:
    recorder.context(3, 1)
    recorder.begin(Operation.FORWARD)
    recorder.end()
    recorder.context(-1, -1)
    recorder.begin(Operation.OPTIMIZER)
    recorder.end()

    columns = resolve(recorder).columns

    assert columns["microbatch"].tolist() == [3, -1]
    assert columns["chunk"].tolist() == [1, -1]


def test_an_operation_carries_who_and_how_much(recorder: Recorder) -> None:
    recorder.begin(Operation.FORWARD_SEND)
    recorder.end_operation(2, 5, 7, 1024, 2)

    columns = resolve(recorder).columns

    assert [columns[key][0] for key in ("communicator", "peer", "sequence", "bytes", "stream")] == [2, 5, 7, 1024, 2]


def test_an_asynchronous_operation_lasts_from_its_issue_but_takes_only_the_wait(recorder: Recorder) -> None:
    recorder.begin(Operation.ALL_REDUCE)
    issued = recorder.cancel()
    spin(0.01)
    recorder.begin(Operation.ALL_REDUCE)
    recorder.end_operation(1, -1, 1, 0, 4, issued)

    spans = resolve(recorder)

    assert len(spans) == 1
    assert spans.duration[0] >= 10_000_000
    assert spans.exposed[0] < spans.duration[0] - 9_000_000


def test_blocking_spans_around_are_counted(recorder: Recorder) -> None:
    recorder.begin(Operation.GRAD_SYNC)
    recorder.begin(Operation.ALL_REDUCE)
    recorder.begin(Operation.GC)
    recorder.end()
    recorder.end_operation(1, -1, 1, 0, 0)
    recorder.end()

    spans = resolve(recorder)

    assert names(spans) == [Operation.GC, Operation.ALL_REDUCE, Operation.GRAD_SYNC]
    assert spans.columns["blocked"].tolist() == [1, 0, 0]


def test_restart_moves_the_beginning_past_what_ended_inside(recorder: Recorder) -> None:
    recorder.begin(Operation.FORWARD)
    recorder.begin(Operation.DATA)
    recorder.end()
    recorder.restart()
    recorder.end()

    spans = resolve(recorder)

    assert spans.columns["first"].tolist() == [0, 1]
    assert spans.start[1] >= spans.start[0] + spans.duration[0]


def test_a_border_ends_one_part_where_it_begins_the_next(recorder: Recorder) -> None:
    recorder.switch(0, -1, Operation.LAYER_FORWARD, Operation.NORM)
    recorder.switch(1, 7, Operation.QKV, -1)
    recorder.switch(2, 7, -1, -1)

    spans = resolve(recorder)

    assert names(spans) == [Operation.NORM, Operation.QKV, Operation.LAYER_FORWARD]
    assert spans.columns["layer"].tolist() == [7, 7, 7]
    norm, qkv, layer = range(3)
    assert spans.start[norm] == spans.start[layer]
    assert spans.start[norm] + spans.duration[norm] == spans.start[qkv]
    assert spans.start[qkv] + spans.duration[qkv] == spans.start[layer] + spans.duration[layer]


def test_whole_spans_can_be_added(recorder: Recorder) -> None:
    recorder.context(1, 0)
    recorder.add(Operation.GC, 1_000, 4_000, 2_000)

    spans = resolve(recorder)

    assert (spans.start[0], spans.duration[0], spans.cpu[0]) == (1_000, 3_000, 2_000)
    assert spans.columns["microbatch"].tolist() == [-1]


def test_the_innermost_open_span_is_known(recorder: Recorder) -> None:
    assert recorder.innermost() == (-1, 0)

    before = now_ns()
    recorder.begin(Operation.STEP)
    recorder.begin(Operation.ALL_GATHER)

    name, since_ns = recorder.innermost()
    assert name == Operation.ALL_GATHER
    assert before <= since_ns <= now_ns()
    assert recorder.depth() == 2


def test_a_seal_takes_what_has_ended_and_forgets_what_is_open(recorder: Recorder) -> None:
    recorder.begin(Operation.STEP)
    recorder.begin(Operation.FORWARD)
    recorder.end()

    assert names(resolve(recorder)) == [Operation.FORWARD]
    assert recorder.depth() == 0
    assert len(resolve(recorder)) == 0


def test_recorders_go_on_over_many_steps(recorder: Recorder) -> None:
    for step in range(1, 50):
        for _ in range(step):
            recorder.begin(Operation.FORWARD)
            recorder.end()
        assert len(resolve(recorder)) == step


def test_on_a_cpu_every_mark_is_done(recorder: Recorder) -> None:
    assert recorder.done(recorder.mark())
