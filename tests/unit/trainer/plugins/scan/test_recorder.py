"""One suite over the recorder in Python and the native one, where its wheel is installed."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from importlib.util import find_spec

import pytest
import torch

from megatronapp.trainer.agent.layout import StepEnd
from megatronapp.trainer.agent.span_table import Spans
from megatronapp.trainer.plugins.scan.clock import now_ns
from megatronapp.trainer.plugins.scan.operations import Operation
from megatronapp.trainer.plugins.scan.recorder import Recorder
from megatronapp.trainer.plugins.scan.recorders import WHEEL, make_native_recorder, make_python_recorder
from tests.unit.trainer.plugins.scan.recorded import Reader, resolved

MAKERS: list[Callable[..., Recorder]] = [make_python_recorder]
if find_spec(WHEEL):
    MAKERS.append(make_native_recorder)


@pytest.fixture(params=MAKERS, ids=lambda maker: maker.__name__)
def make(request: pytest.FixtureRequest) -> Callable[..., Recorder]:
    maker: Callable[..., Recorder] = request.param
    return maker


@pytest.fixture
def recorder(make: Callable[..., Recorder]) -> Recorder:
    return make(torch.device("cpu"))


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

    spans = resolved(recorder)

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

    spans = resolved(recorder)

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

    columns = resolved(recorder).columns

    assert columns["microbatch"].tolist() == [3, -1]
    assert columns["chunk"].tolist() == [1, -1]


def test_an_operation_carries_who_and_how_much(recorder: Recorder) -> None:
    recorder.begin(Operation.FORWARD_SEND)
    recorder.end_operation(2, 5, 7, 1024, 2)

    columns = resolved(recorder).columns

    assert [columns[key][0] for key in ("communicator", "peer", "sequence", "bytes", "stream")] == [2, 5, 7, 1024, 2]


def test_an_asynchronous_operation_lasts_from_its_issue_but_takes_only_the_wait(recorder: Recorder) -> None:
    recorder.begin(Operation.ALL_REDUCE)
    issued = recorder.cancel()
    spin(0.01)
    recorder.begin(Operation.ALL_REDUCE)
    recorder.end_operation(1, -1, 1, 0, 4, issued)

    spans = resolved(recorder)

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

    spans = resolved(recorder)

    assert names(spans) == [Operation.GC, Operation.ALL_REDUCE, Operation.GRAD_SYNC]
    assert spans.columns["blocked"].tolist() == [1, 0, 0]


def test_restart_moves_the_beginning_past_what_ended_inside(recorder: Recorder) -> None:
    recorder.begin(Operation.FORWARD)
    recorder.begin(Operation.DATA)
    recorder.end()
    recorder.restart()
    recorder.end()

    spans = resolved(recorder)

    assert spans.columns["first"].tolist() == [0, 1]
    assert spans.start[1] >= spans.start[0] + spans.duration[0]


def test_a_border_ends_one_part_where_it_begins_the_next(recorder: Recorder) -> None:
    recorder.switch(0, -1, Operation.LAYER_FORWARD, Operation.NORM)
    recorder.switch(1, 7, Operation.QKV, -1)
    recorder.switch(2, 7, -1, -1)

    spans = resolved(recorder)

    assert names(spans) == [Operation.NORM, Operation.QKV, Operation.LAYER_FORWARD]
    assert spans.columns["layer"].tolist() == [7, 7, 7]
    norm, qkv, layer = range(3)
    assert spans.start[norm] == spans.start[layer]
    assert spans.start[norm] + spans.duration[norm] == spans.start[qkv]
    assert spans.start[qkv] + spans.duration[qkv] == spans.start[layer] + spans.duration[layer]


def test_whole_spans_can_be_added(recorder: Recorder) -> None:
    recorder.context(1, 0)
    recorder.add(Operation.GC, 1_000, 4_000, 2_000)

    spans = resolved(recorder)

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


def test_a_steps_end_takes_what_has_ended_and_forgets_what_is_open(recorder: Recorder) -> None:
    recorder.begin(Operation.STEP)
    recorder.begin(Operation.FORWARD)
    recorder.end()

    assert names(resolved(recorder)) == [Operation.FORWARD]
    assert recorder.depth() == 0
    assert len(resolved(recorder)) == 0


def test_recorders_go_on_over_many_steps(recorder: Recorder) -> None:
    for step in range(1, 50):
        for _ in range(step):
            recorder.begin(Operation.FORWARD)
            recorder.end()
        assert len(resolved(recorder)) == step


def test_a_message_is_named(recorder: Recorder) -> None:
    recorder.begin(Operation.FORWARD_SEND)
    recorder.end_operation(1, 2, 3, 4, 2, None, 77)
    recorder.add_operation(Operation.FORWARD_RECV, recorder.mark(), recorder.mark(), 1, 2, 3, 4, 3, None, 78, 5, 1)

    columns = resolved(recorder).columns

    assert columns["message"].tolist() == [77, 78]
    assert (columns["microbatch"].tolist(), columns["chunk"].tolist()) == ([-1, 5], [-1, 1])


def test_a_step_that_is_larger_than_a_record_comes_whole(make: Callable[..., Recorder]) -> None:
    recorder = make(torch.device("cpu"), 1 << 16)

    for layer in range(200):
        recorder.switch(0, -1, Operation.NORM, -1)
        recorder.switch(1, layer, -1, -1)

    assert resolved(recorder).columns["layer"].tolist() == list(range(200))


def test_a_reader_that_is_overtaken_counts_what_it_has_missed(make: Callable[..., Recorder]) -> None:
    recorder = make(torch.device("cpu"), 1 << 14)
    reader = Reader(recorder)

    for step in range(1, 101):
        for _ in range(5):
            recorder.begin(Operation.FORWARD)
            recorder.end()
        reader.write(partial(recorder.end_step, StepEnd(step)))
    recorder.close(60.0)
    steps = reader.steps()

    assert [step.end.step for step in steps] == list(range(101 - len(steps), 101))
    assert 1 <= len(steps) < 100
    assert 2 * (100 - len(steps)) <= reader.lost <= 6 * (100 - len(steps)) + 6


def test_a_steps_end_tells_what_is_known_of_it(recorder: Recorder) -> None:
    reader = Reader(recorder)
    recorder.mark()

    recorder.end_step(
        StepEnd(
            step=7,
            start_ns=10,
            duration_ns=20,
            cpu_ns=5,
            traced=True,
            phases=0b110,
            known=0b11011,
            loss=1.5,
            learning_rate=0.1,
            tokens_per_second=9.0,
            teraflops=2.0,
            total_steps=100,
        )
    )
    recorder.close(60.0)

    ((step,)) = reader.steps()
    end = step.end
    assert (end.step, end.start_ns, end.duration_ns, end.cpu_ns, end.traced) == (7, 10, 20, 5, 1)
    assert (end.phases, end.known, end.total_steps, end.marks) == (0b110, 0b11011, 100, 1)
    assert (end.loss, end.learning_rate, end.tokens_per_second, end.teraflops) == (1.5, 0.1, 9.0, 2.0)


def test_what_the_rank_does_now_is_seen_from_outside(recorder: Recorder) -> None:
    reader, before = Reader(recorder), now_ns()
    recorder.set_step(12)
    recorder.set_phase(2)
    recorder.set_memory(1, 2, 3, 4)
    recorder.begin(Operation.BACKWARD)

    beat = reader.heartbeat()

    assert (beat.step, beat.phase, beat.activity) == (12, 2, "backward")
    assert before - 1000 <= beat.activity_since_ns <= now_ns()
    memory = beat.memory
    assert (memory.allocated_bytes, memory.reserved_bytes, memory.peak_allocated_bytes) == (1, 2, 3)
    assert memory.device_bytes == 4
    recorder.end()
    assert reader.heartbeat().activity == ""


def test_the_agents_word_is_heard(recorder: Recorder) -> None:
    assert recorder.control()[0] == 0

    Reader(recorder).segment.write_control(True, 7, 3, 2, 1)

    assert recorder.control() == (1, 1, 7, 3, 2)


def test_on_a_cpu_every_mark_is_done(recorder: Recorder) -> None:
    assert recorder.done(recorder.mark())


if find_spec(WHEEL):

    def test_the_native_recorder_refuses_what_would_corrupt_it() -> None:
        recorder = make_native_recorder(torch.device("cpu"))

        with pytest.raises(ValueError, match="no span is open"):
            recorder.end()
        with pytest.raises(ValueError, match="no such name"):
            recorder.begin(10_000)
        with pytest.raises(TypeError):
            recorder.begin("forward")  # type: ignore[arg-type]
