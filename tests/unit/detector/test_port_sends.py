"""Jobs whose network ports tell how fast they send: by Megatrace's telemetry, without NCCL's plug-in."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from bench.scale.faults import Fault, What
from bench.scale.feeds import TableFeed
from bench.scale.job import Job, Spec
from bench.scale.layout import Layout
from bench.scale.nccl import NETWORK, SEND_NOISE, NcclRecords
from bench.scale.scenarios import QUIET
from bench.scale.seeds import generator
from megatronapp.core.findings import Finding, Kind, State
from megatronapp.detector.nccl_metrics import samples
from megatronapp.detector.nccl_watch import SILENT_STEPS, NcclView
from megatronapp.detector.steps import StepTable
from megatronapp.v1 import trace_pb2

LAYOUT, ONSET, STEPS = Layout(pp=1, dp=4, tp=8), 32, 49
SENT = 1 << 30
"""Bytes of a rank in a step."""


class Ports(NcclRecords):
    """Two ports a rank, of which one may be slow from ONSET on."""

    def __init__(self, *slow: int, telling: int = LAYOUT.world, every: int = 1, until: int = STEPS) -> None:
        """telling: the first ranks, whose ports tell. every: steps in which they do, up to that."""
        super().__init__(LAYOUT)
        self._slow, self._telling, self._every, self._until = slow, telling, every, until
        self._noise = generator(0, "ports")

    def recorded(self, table: StepTable) -> StepTable:
        told = table.step % self._every == 0 and table.step <= self._until
        return replace(table, ports=tuple((rank, self._of(rank, table.step)) for rank in range(self._telling) if told))

    def _of(self, rank: int, step: int) -> list[trace_pb2.PortSends]:
        slower = 4.0 if rank in self._slow and step >= ONSET else 1.0
        noise = np.exp(SEND_NOISE * self._noise.standard_normal(2))
        return [
            trace_pb2.PortSends(
                port=f"host_mlx5_{rank}{port} port 0",
                busy_sends=100,
                busy_ns=int(SENT / NETWORK * 1e9 * noise[port] * (slower if port else 1.0)),
                busy_bytes=SENT,
                ended_unix_ns=1,
            )
            for port in range(2)
        ]


def played(ports: Ports, *slow: int) -> tuple[TableFeed, list[Finding]]:
    """What stands at the end; steps are longer where a port is slow."""
    links = tuple(Fault(What.LINK, (rank,), 5.0, ONSET) for rank in slow)
    job = Job(Spec(LAYOUT, 15.0, QUIET, faults=links), 0)
    feed = TableFeed(job, ports)
    said = [finding for _ in range(STEPS) for _, finding in feed.step(job.step())]
    return feed, [each for each in {f.id: f for f in said}.values() if each.state is State.OPEN]


def nccl_of(feed: TableFeed) -> NcclView | None:
    assert feed.engine.judge.view is not None
    return feed.engine.judge.view.nccl


def test_the_rank_whose_port_sends_slowly_is_named_with_its_port() -> None:
    _, found = played(Ports(19), 19)

    assert [(f.kind, f.ranks) for f in found] == [(Kind.SLOW_LINK, (19,))]
    assert "What rank 19 sends through host_mlx5_191 port 0 takes" in found[0].summary


def test_nobody_is_named_where_all_ports_are_alike() -> None:
    assert played(Ports())[1] == []


def test_a_slow_port_is_named_where_only_a_stages_part_tells() -> None:
    _, found = played(Ports(3, telling=6), 3)

    assert [(f.kind, f.ranks) for f in found] == [(Kind.SLOW_LINK, (3,))]


def test_the_port_is_still_told_of_in_steps_too_short_for_a_word_of_it() -> None:
    _, found = played(Ports(19, every=2), 19)

    assert ["through host_mlx5_191 port 0" in each.summary for each in found] == [True]


def test_what_was_told_once_does_not_hold_for_ever() -> None:
    feed, found = played(Ports(19, until=STEPS - SILENT_STEPS), 19)
    silent, _ = played(Ports(19, until=STEPS - SILENT_STEPS - 1), 19)

    assert ["through host_mlx5_191 port 0" in each.summary for each in found] == [True]
    assert nccl_of(feed) is not None
    assert nccl_of(silent) is None


def test_the_slowest_ports_are_on_the_page_of_metrics_and_no_proxies_waits() -> None:
    feed, _ = played(Ports(19), 19)

    shown = list(samples(feed.engine.judge.view, ("job", "ns"), 4))

    senders = [labels[2] for name, labels, _ in shown if name == "nccl_send_bytes_per_second"]
    assert (senders[0], len(senders)) == ("19", 4)
    assert "nccl_proxy_wait_seconds" not in {name for name, _, _ in shown}
