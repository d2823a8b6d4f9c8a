"""Detail of an attached script is turned on while it runs, by its collector."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from threading import Lock
from typing import Any

import grpc
import pytest

from megatronapp.v1 import trace_pb2, trace_pb2_grpc
from tests.support.attached import SCRIPTS, run
from tests.support.served_collector import served

STEPS, STAGES = 12, 2
ON = trace_pb2.TraceControl(enabled=True, interval=1, continuous_iterations=1, granularity=trace_pb2.GRANULARITY_FULL)


class Collector(trace_pb2_grpc.TraceIngestServicer):
    """Acknowledges all; says to each rank what is to be traced once its second step is told."""

    def __init__(self, control: trace_pb2.TraceControl | None) -> None:
        self._control = control
        self._lock = Lock()
        self.detailed: Counter[int] = Counter()
        """Batches of each step, of all ranks."""
        self.summarized: Counter[int] = Counter()
        """Summaries of each step."""

    def Stream(self, requests: Iterator[Any], context: grpc.ServicerContext) -> Iterator[Any]:  # noqa: N802
        for message in requests:
            with self._lock:
                self._count(message)
            if self._control is not None and message.HasField("summary") and message.summary.step == 2:
                yield trace_pb2.TraceReply(control=self._control)
            if message.seq:
                yield trace_pb2.TraceReply(ack=trace_pb2.Ack(seq=message.seq))

    def _count(self, message: trace_pb2.TraceMessage) -> None:
        if message.HasField("batch"):
            self.detailed[message.batch.step] += 1
        elif message.HasField("summary"):
            self.summarized[message.summary.step] += 1


@pytest.mark.long
@pytest.mark.timeout(400)
@pytest.mark.parametrize("control", [ON, None], ids=["asked for", "not asked for"])
def test_steps_are_traced_in_detail_from_when_the_collector_asks_for_it(
    control: trace_pb2.TraceControl | None,
) -> None:
    collector = Collector(control)

    with served(collector) as (_, address):
        ended = run(SCRIPTS / "megatron_core_loop.py", STEPS, STAGES, attach=["--collector-address", address])

    assert ended.code == 0, ended.output
    assert set(collector.summarized) == set(range(1, STEPS + 1))
    assert not collector.detailed.keys() & {1, 2}
    assert (STEPS in collector.detailed) == (control is not None)
