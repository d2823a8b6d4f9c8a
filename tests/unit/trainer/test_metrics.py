from __future__ import annotations

import math

import pytest

from megatronapp.core.trace.validate import check_message
from megatronapp.trainer.metrics import StepReport
from megatronapp.v1 import trace_pb2


@pytest.mark.parametrize("grad_norm", [math.inf, math.nan, None, 1.5])
def test_a_gradient_that_overflowed_has_no_norm_to_tell(grad_norm: float | None) -> None:
    report = StepReport(
        step=3,
        total_steps=10,
        loss=2.5,
        learning_rate=1e-4,
        grad_norm=grad_norm,
        step_seconds=0.5,
        tokens_per_second=1e5,
        tflops_per_gpu=300.0,
    )

    progress = report.progress()

    assert progress.HasField("grad_norm") == (grad_norm == 1.5)
    check_message(trace_pb2.TraceMessage(seq=1, summary=trace_pb2.StepSummary(step=3, progress=progress)))
