"""What `megatronapp doctor` says of the recorder."""

from __future__ import annotations

import os
import struct
from importlib.metadata import entry_points

import pytest

pytest.importorskip("megatronapp.scan", reason="the recorder's wheel is not installed: pip install native/scan")

from megatronapp.scan import Recorder, mark_cost_ns
from megatronapp.scan.running import RunningRank, running_ranks
from tests.support.segment import SegmentReader


def test_costs_are_told_by_what_is_recorded() -> None:
    costs = mark_cost_ns()

    assert list(costs) == ["host mark", "begin and end", "span under full"]
    assert all(cost > 0 for cost in costs.values())
    assert costs["begin and end"] > costs["host mark"]


def test_a_rank_that_runs_here_is_found_with_the_marks_of_its_newest_step() -> None:
    recorder = Recorder(bytes(1), bytes(1), None, 0, 4096)
    recorder.set_step(12)
    for _ in range(3):
        recorder.mark()
    recorder.end_step((11,))
    recorder.mark()
    held_by_an_agent = SegmentReader(recorder.fd)

    found = list(running_ranks())

    assert found.count(RunningRank(os.getpid(), 12, 3)) == 1
    assert held_by_an_agent.marks() == (4, 3)
    recorder.close(1.0)


def test_a_rank_is_named_once_however_many_descriptors_it_holds() -> None:
    recorder = Recorder(bytes(1), bytes(1), None, 0, 4096)
    recorder.set_step(1_000_012)
    recorder.mark()
    recorder.end_step((1_000_011,))
    others = [os.dup(recorder.fd) for _ in range(3)]

    found = [rank for rank in running_ranks() if rank.pid == os.getpid()]

    assert found == [RunningRank(os.getpid(), 1_000_012, 1)]
    for other in others:
        os.close(other)
    recorder.close(1.0)


def test_a_segment_whose_header_makes_no_sense_is_passed_over() -> None:
    hostile = os.memfd_create("megatronapp")
    os.write(hostile, struct.pack("<8s2I8xQ", b"MGTAPP01", 1, os.getpid(), 2**64 - 1))

    found = list(running_ranks())

    assert all(rank.step < 2_000_000 for rank in found if rank.pid == os.getpid())
    os.close(hostile)


def test_the_doctor_finds_the_recorders_checks() -> None:
    (entry,) = [entry for entry in entry_points(group="megatronapp.doctor") if entry.name == "scan"]
    lines = list(entry.load()())

    assert lines[0][0] == "cost of a mark"
    assert "host mark" in lines[0][2]
