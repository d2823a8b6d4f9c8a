"""What a recorder has written, read back by the agent's own reader."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable

from megatronapp.trainer.agent.heartbeat import heartbeat_of
from megatronapp.trainer.agent.layout import StepEnd
from megatronapp.trainer.agent.process import RankProcess
from megatronapp.trainer.agent.segment import Segment
from megatronapp.trainer.agent.span_table import Spans, joined
from megatronapp.trainer.agent.spans import SpanNames
from megatronapp.trainer.agent.steps import Step, Steps
from megatronapp.trainer.plugins.scan.operations import NAMES as NAME_TABLE
from megatronapp.trainer.plugins.scan.operations import document
from megatronapp.trainer.plugins.scan.recorder import Recorder
from megatronapp.trainer.plugins.scan.window import Window
from megatronapp.v1 import trace_pb2

NAMES = SpanNames.parse(json.loads(json.dumps(document())))
PATIENCE_SECONDS = 60.0


class Reader:
    """A second pair of eyes on a recorder's segment."""

    def __init__(self, recorder: Recorder) -> None:
        self.segment = Segment(os.dup(recorder.fd))
        self._steps = Steps()

    def steps(self) -> list[Step]:
        """Those that have been written since the last call."""
        head = self.segment.ring.head()
        records = self.segment.ring.records(head)
        assert self.segment.ring.position == head
        return [step for record in records if (step := self._steps.feed(record)) is not None]

    def write(self, what: Callable[[], None]) -> None:
        """Does what has something written, and waits for it: the native recorder keeps no more than so many steps."""
        before, deadline = self.segment.ring.head(), time.monotonic() + PATIENCE_SECONDS
        what()
        while self.segment.ring.head() == before:
            assert time.monotonic() < deadline
            time.sleep(0.0001)

    @property
    def lost(self) -> int:
        return self._steps.lost + self.segment.ring.lost

    def heartbeat(self) -> trace_pb2.Heartbeat:
        return heartbeat_of(
            self.segment,
            RankProcess(os.getpid(), self.segment.thread),
            0,
            NAMES,
            (),
            (),
            Window(enabled=False).control(),
            None,
            0,
            closing=False,
        )


def resolved(recorder: Recorder) -> Spans:
    """The spans since the last step's end, which comes now. The native recorder writes them in its own time."""
    reader = Reader(recorder)
    recorder.end_step(StepEnd(1))
    deadline = time.monotonic() + PATIENCE_SECONDS
    while not (steps := reader.steps()):
        assert time.monotonic() < deadline
        time.sleep(0.001)
    (step,) = steps
    spans, reasons = joined([step.table], len(NAME_TABLE))
    assert reasons == [""]
    return spans
