"""Metrics of what NCCL tells: bus bandwidth by kind and size, links and senders, waits of proxies, late starts."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping

import numpy as np

from megatronapp.core.trace.group_kinds import GroupKind
from megatronapp.core.trace.span_names import COLLECTIVES
from megatronapp.detector.nccl_watch import START, NcclView
from megatronapp.detector.rules.base import View
from megatronapp.detector.signals.late_starts import waited_for
from megatronapp.detector.signals.nccl_operations import Transfer

Sample = tuple[str, tuple[str, ...], float]
GAUGES: dict[str, tuple[str, tuple[str, ...]]] = {
    "nccl_bus_bandwidth_bytes_per_second": (
        "Bus bandwidth of NCCL's operations, as nccl-tests has it: of the median and of the slowest communicator.",
        ("group_kind", "op", "algorithm", "size", "of"),
    ),
    "nccl_link_bandwidth_bytes_per_second": (
        "Speed of messages between two nodes; the slowest pairs.",
        ("src_node", "dst_node"),
    ),
    "nccl_send_bytes_per_second": (
        "What a rank sends over the network, over the time that proxies wait or ports are busy; the slowest.",
        ("rank", "node"),
    ),
    "nccl_proxy_wait_seconds": ("What a rank's proxies wait for in a step, all together: mean.", ("waits_for",)),
    "nccl_late_start_seconds": (
        "What others of its stage waited in a step for a rank that began last; the latest.",
        ("rank", "node", "persistent"),
    ),
}
OTHER = "other"
ALGORITHMS = frozenset({"", "RING", "TREE", "COLLNET_DIRECT", "COLLNET_CHAIN", "NVLS", "NVLS_TREE", "PAT"})
KINDS = frozenset(map(str, GroupKind))
OPERATIONS = COLLECTIVES | {"message"}
SIZES = ((16, "below 64 KiB"), (20, "64 KiB to 1 MiB"), (24, "1 to 16 MiB"), (28, "16 to 256 MiB"))
"""log2 of bytes below which a size has the name."""
LARGEST = "from 256 MiB"


def samples(view: View | None, labels: tuple[str, ...], top: int) -> Iterator[Sample]:
    """top: at most so many ranks, and pairs of nodes, have series of their own."""
    if view is None or view.nccl is None:
        return
    nodes = dict(zip(view.table.ranks.rank.tolist(), view.table.ranks.node.tolist(), strict=True))
    yield from _bandwidths(view.nccl, labels)
    yield from _links(view.nccl, nodes, labels, top)
    yield from _senders(view.nccl, nodes, labels, top)
    yield from _waits(view.nccl, labels)
    yield from _late(view, view.nccl, nodes, labels, top)


def _bandwidths(nccl: NcclView, labels: tuple[str, ...]) -> Iterator[Sample]:
    speeds = defaultdict[tuple[str, ...], list[float]](list)
    for key, speed in nccl.transfers.bandwidth.items():
        speeds[_series(key)].append(speed)
    for series, found in speeds.items():
        yield "nccl_bus_bandwidth_bytes_per_second", (*labels, *series, "median"), float(np.median(found))
        yield "nccl_bus_bandwidth_bytes_per_second", (*labels, *series, "slowest"), min(found)


def _series(key: Transfer) -> tuple[str, ...]:
    """Each word is a sender's: what is not known has no series of its own."""
    kind = key.communicator.partition(":")[0]
    return (
        kind if kind in KINDS | {"p2p"} else OTHER,
        key.operation if key.operation in OPERATIONS else OTHER,
        key.algorithm if key.algorithm in ALGORITHMS else OTHER,
        next((name for below, name in SIZES if key.size_log2 < below), LARGEST),
    )


def _links(nccl: NcclView, nodes: Mapping[int, str], labels: tuple[str, ...], top: int) -> Iterator[Sample]:
    """Of each pair of ranks what is fastest, since small messages never are; of each pair of nodes the slowest."""
    pairs: dict[tuple[int, int], float] = {}
    for key, speed in nccl.transfers.bandwidth.items():
        senders, receivers = nccl.transfers.ends[key]
        if key.operation == "message":
            pair = senders[0], receivers[0]
            pairs[pair] = max(speed, pairs.get(pair, 0.0))
    links: dict[tuple[str, str], float] = {}
    for (sender, receiver), speed in pairs.items():
        link = nodes.get(sender, ""), nodes.get(receiver, "")
        if all(link) and link[0] != link[1]:
            links[link] = min(speed, links.get(link, speed))
    for link, speed in sorted(links.items(), key=lambda each: each[1])[:top]:
        yield "nccl_link_bandwidth_bytes_per_second", (*labels, *link), speed


def _senders(nccl: NcclView, nodes: Mapping[int, str], labels: tuple[str, ...], top: int) -> Iterator[Sample]:
    speeds = {rank: 1 / own.sending for rank, own in nccl.waits.items() if own.sending}
    for rank, speed in sorted(speeds.items(), key=lambda each: each[1])[:top]:
        yield "nccl_send_bytes_per_second", (*labels, str(rank), nodes.get(rank, "")), speed


def _waits(nccl: NcclView, labels: tuple[str, ...]) -> Iterator[Sample]:
    for waits_for in ("gpu", "peer", "network", "data") if nccl.waits and not nccl.ports else ():
        mean = float(np.mean([getattr(own, waits_for) for own in nccl.waits.values()]))
        yield "nccl_proxy_wait_seconds", (*labels, waits_for), mean


def _late(view: View, nccl: NcclView, nodes: Mapping[int, str], labels: tuple[str, ...], top: int) -> Iterator[Sample]:
    waited = waited_for(list(nccl.starts), nccl.known, view.table.ranks)
    persistent = set(view.alarmed(START))
    for rank, seconds in sorted(waited.items(), key=lambda each: -each[1])[:top]:
        if seconds > 0:
            who = str(rank), nodes.get(rank, ""), str(rank in persistent).lower()
            yield "nccl_late_start_seconds", (*labels, *who), seconds
