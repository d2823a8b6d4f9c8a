"""What the collector asks for, and from when on it is in force."""

from __future__ import annotations

import os

import pytest
import torch

from megatronapp.core.trace.values import Granularity, TraceControl
from megatronapp.trainer.agent.control import ControlRelay
from megatronapp.trainer.agent.segment import Segment
from megatronapp.trainer.plugins.scan.recorder import Recorder
from megatronapp.trainer.plugins.scan.recorders import make_python_recorder
from megatronapp.v1 import trace_pb2

FIRST = TraceControl(enabled=False, interval=5, continuous_iterations=2, granularity=Granularity.FULL)


@pytest.fixture
def recorder() -> Recorder:
    return make_python_recorder(torch.device("cpu"))


@pytest.fixture
def relay(recorder: Recorder) -> ControlRelay:
    return ControlRelay(Segment(os.dup(recorder.fd)), FIRST)


def test_what_is_asked_for_is_in_force_from_the_next_step_on(recorder: Recorder, relay: ControlRelay) -> None:
    recorder.set_step(7)
    relay.ask(trace_pb2.TraceControl(enabled=True, interval=9, continuous_iterations=3, granularity=1))
    relay.relay()

    assert recorder.control() == (1, 1, 9, 3, 1)
    assert relay.in_force == FIRST
    recorder.set_step(8)
    relay.relay()
    assert relay.in_force == TraceControl(
        enabled=True, interval=9, continuous_iterations=3, granularity=Granularity.BASE
    )


def test_what_a_change_leaves_out_stays_as_it_is_and_changes_add_up(recorder: Recorder, relay: ControlRelay) -> None:
    relay.ask(trace_pb2.TraceControl(enabled=True, interval=8))
    relay.ask(trace_pb2.TraceControl(enabled=True, granularity=trace_pb2.GRANULARITY_BASE))
    relay.relay()

    assert recorder.control() == (2, 1, 8, 2, 1)


def test_a_control_that_makes_no_sense_is_left_out(recorder: Recorder, relay: ControlRelay) -> None:
    relay.ask(trace_pb2.TraceControl(enabled=True, interval=4_000_000_000))
    relay.relay()

    assert recorder.control()[0] == 0


def test_an_agent_that_follows_another_counts_on(recorder: Recorder, relay: ControlRelay) -> None:
    relay.ask(trace_pb2.TraceControl(enabled=True))
    relay.relay()
    second = ControlRelay(Segment(os.dup(recorder.fd)), FIRST)
    second.ask(trace_pb2.TraceControl(enabled=False))
    second.relay()

    assert recorder.control()[:2] == (2, 0)
