"""One bound for how seldom a job is traced in detail, at every door: what one of them takes, the next understands."""

import pytest
from pydantic import ValidationError

from megatronapp.core.errors import DataError
from megatronapp.core.trace.limits import MAX_TRACE_INTERVAL
from megatronapp.core.trace.validate import check_control
from megatronapp.core.trainingjob.plugins import ScanPlugin
from megatronapp.gateway.models import TraceControl, TraceGranularity
from megatronapp.v1 import trace_pb2


def test_the_longest_interval_passes_every_door() -> None:
    ScanPlugin(interval=MAX_TRACE_INTERVAL)
    TraceControl(enabled=True, interval=MAX_TRACE_INTERVAL, continuous_iterations=1, granularity=TraceGranularity.BASE)
    check_control(trace_pb2.TraceControl(interval=MAX_TRACE_INTERVAL))


def test_a_longer_one_is_refused_by_each() -> None:
    with pytest.raises(ValidationError, match="interval"):
        ScanPlugin(interval=MAX_TRACE_INTERVAL + 1)
    with pytest.raises(ValidationError, match="interval"):
        TraceControl(
            enabled=True, interval=MAX_TRACE_INTERVAL + 1, continuous_iterations=1, granularity=TraceGranularity.BASE
        )
    with pytest.raises(DataError, match="interval"):
        check_control(trace_pb2.TraceControl(interval=MAX_TRACE_INTERVAL + 1))
