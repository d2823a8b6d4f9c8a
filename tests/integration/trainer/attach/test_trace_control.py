"""Detail of an attached script is turned on while it runs, by its collector."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
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
    """Acknowledges all; says to each rank what is to be traced once its second step is told. `enough`: a file that it
    makes as soon as each rank has sent a step's detail. How many steps that takes is the machine's affair."""

    def __init__(self, control: trace_pb2.TraceControl | None, enough: Path) -> None:
        self._control = control
        self._enough = enough
        self._lock = Lock()
        self.detailed: dict[int, set[int]] = {rank: set() for rank in range(STAGES)}
        """Each rank's steps of which a batch came."""
        self.summarized: dict[int, set[int]] = {rank: set() for rank in range(STAGES)}

    def Stream(self, requests: Iterator[Any], context: grpc.ServicerContext) -> Iterator[Any]:  # noqa: N802
        rank = -1
        for message in requests:
            if message.HasField("hello"):
                rank = message.hello.identity.rank
            with self._lock:
                self._note(rank, message)
            if self._control is not None and message.HasField("summary") and message.summary.step == 2:
                yield trace_pb2.TraceReply(control=self._control)
            if message.seq:
                yield trace_pb2.TraceReply(ack=trace_pb2.Ack(seq=message.seq))

    def _note(self, rank: int, message: trace_pb2.TraceMessage) -> None:
        if message.HasField("summary"):
            self.summarized[rank].add(message.summary.step)
        elif message.HasField("batch"):
            self.detailed[rank].add(message.batch.step)
            if all(self.detailed.values()):
                self._enough.touch()


def attached(collector: Collector, *arguments: object) -> None:
    with served(collector) as (_, address):
        attach = ["--collector-address", address]
        ended = run(SCRIPTS / "megatron_core_loop.py", STEPS, STAGES, *arguments, attach=attach)
    assert ended.code == 0, ended.output


@pytest.mark.long
@pytest.mark.timeout(400)
def test_steps_are_traced_in_detail_from_when_the_collector_asks_for_it(tmp_path: Path) -> None:
    collector = Collector(ON, tmp_path / "enough")

    attached(collector, f"until={tmp_path / 'enough'}")

    for rank, detailed in collector.detailed.items():
        last = max(collector.summarized[rank])
        assert collector.summarized[rank] == set(range(1, last + 1))
        assert detailed == set(range(min(detailed), last + 1))
        assert min(detailed) > 2


@pytest.mark.long
@pytest.mark.timeout(400)
def test_no_step_is_traced_in_detail_that_no_collector_asks_for(tmp_path: Path) -> None:
    collector = Collector(None, tmp_path / "enough")

    attached(collector)

    assert all(steps == set(range(1, STEPS + 1)) for steps in collector.summarized.values())
    assert not any(collector.detailed.values())
