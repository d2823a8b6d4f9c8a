"""Both recorders on a real GPU: times of the stream, placed on the host's clock."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from megatronapp.trainer.plugins.scan.clock import now_ns
from megatronapp.trainer.plugins.scan.operations import Operation
from megatronapp.trainer.plugins.scan.recorder import Recorder
from tests.unit.trainer.plugins.scan.recorded import resolved
from tests.unit.trainer.plugins.scan.test_recorder import MAKERS

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no GPU"),
]


@pytest.fixture(params=MAKERS, ids=lambda maker: maker.__name__)
def recorder(request: pytest.FixtureRequest) -> Recorder:
    make: Callable[[torch.device], Recorder] = request.param
    return make(torch.device("cuda", 0))


def test_a_span_of_the_stream_lasts_as_long_as_its_work_there(recorder: Recorder) -> None:
    matrix = torch.randn(4096, 4096, device="cuda")
    torch.cuda.synchronize()

    began = now_ns()
    recorder.begin(Operation.FORWARD)
    for _ in range(50):
        matrix @ matrix
    recorder.end()
    enqueued = now_ns()
    torch.cuda.synchronize()
    spans = resolved(recorder)
    ended = now_ns()

    slack = 100_000
    assert began - slack <= spans.start[0]
    assert spans.start[0] + spans.duration[0] <= ended + slack
    assert spans.duration[0] > 50 * 2 * 4096**3 / 1e15 * 1e9
    assert began <= spans.enqueue[0] <= enqueued
    assert spans.cpu[0] == 0


def test_marks_are_done_when_the_stream_has_passed_them(recorder: Recorder) -> None:
    matrix = torch.randn(8192, 8192, device="cuda")
    torch.cuda.synchronize()

    for _ in range(100):
        matrix @ matrix
    mark = recorder.mark()

    assert not recorder.done(mark)
    torch.cuda.synchronize()
    assert recorder.done(mark)


def test_host_spans_keep_the_hosts_clock(recorder: Recorder) -> None:
    began = now_ns()
    recorder.begin(Operation.DATA)
    recorder.end_work(1, 1)
    spans = resolved(recorder)

    assert began <= spans.start[0] <= now_ns()
    assert spans.enqueue[0] == 0


def test_events_are_used_again(recorder: Recorder) -> None:
    for _ in range(20):
        for _ in range(1000):
            recorder.begin(Operation.FORWARD)
            recorder.end()
        torch.cuda.synchronize()
        assert len(resolved(recorder)) == 1000
