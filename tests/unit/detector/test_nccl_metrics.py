"""What of NCCL's word is on the page of metrics, and that no sender's word makes a series of its own."""

from __future__ import annotations

from bench.scale.feeds import TableFeed
from bench.scale.job import Job, Spec
from bench.scale.layout import Layout
from bench.scale.nccl import NcclFault, NcclRecords
from bench.scale.scenarios import QUIET
from megatronapp.core.findings import Finding
from megatronapp.detector.nccl_metrics import GAUGES, LARGEST, OTHER, samples
from megatronapp.v1 import trace_pb2

LAYOUT, LABELS = Layout(pp=1, dp=4, tp=8), ("job", "ns")
SENDS, LATE = "nccl_send_bytes_per_second", "nccl_late_start_seconds"
LINKS, BANDWIDTH = "nccl_link_bandwidth_bytes_per_second", "nccl_bus_bandwidth_bytes_per_second"


class Renamed(NcclRecords):
    """Adds a message between the first two nodes, and operations of many names."""

    def recorded(self, table):
        table = super().recorded(table)
        seat = {"hash": 5, "size": 2, "timed": True}
        for rank, place in ((0, 0), (9, 1)):
            own = table.nccl[rank][1]
            fields = {"operation": "send", "size_log2": 24, "fastest_bytes": 1 << 24, "fastest_ns": 1 << 20}
            own.append(
                trace_pb2.NcclTally(
                    seat=trace_pb2.NcclSeat(**seat, place=place, peer=1 - place), sending=place == 0, **fields
                )
            )
            own += [
                trace_pb2.NcclTally(
                    seat=trace_pb2.NcclSeat(**seat, place=place),
                    algorithm=f"A{number}",
                    **fields | {"operation": f"x{number}"},
                )
                for number in range(50)
            ]
        return table


def shown(*faults: NcclFault, steps: int = 8, top: int = 4):
    job = Job(Spec(LAYOUT, 15.0, QUIET), 0)
    feed = TableFeed(job, Renamed(LAYOUT, faults))
    for _ in range(steps):
        list[tuple[int, Finding]](feed.step(job.step()))
    return list(samples(feed.engine.judge.view, LABELS, top))


def test_each_gauge_is_there_with_its_labels() -> None:
    found = shown()

    assert {name for name, _, _ in found} == GAUGES.keys()
    assert all(len(labels) == len(LABELS) + len(GAUGES[name][1]) for name, labels, _ in found)


def test_bus_bandwidth_is_told_by_kind_algorithm_and_size() -> None:
    series = {labels[2:]: value for name, labels, value in shown() if name == BANDWIDTH}

    dp = series["dp", "all_reduce", "RING", LARGEST, "median"]
    assert 30e9 < series["dp", "all_reduce", "RING", LARGEST, "slowest"] <= dp < 50e9
    assert sum(OTHER in labels for labels in series) == 4


def test_the_slowest_sender_and_link_come_first_and_are_few() -> None:
    found = shown(NcclFault("nic", (19,), 4.0, 1))

    senders = [labels[2] for name, labels, _ in found if name == SENDS]
    assert (senders[0], len(senders)) == ("19", 4)
    assert [value for name, _, value in found if name == LINKS] == [(1 << 24) / ((1 << 20) * 1e-9)]


def test_who_is_late_once_is_not_persistent() -> None:
    found = shown(NcclFault("late", (19,), 0.5, 8))

    (who, seconds) = next((labels[2:], value) for name, labels, value in found if name == LATE)
    assert (who[0], who[2], round(seconds, 1)) == ("19", "false", 2.0)


def test_a_job_whose_nccl_tells_nothing_has_no_series() -> None:
    assert list(samples(None, LABELS, 4)) == []
