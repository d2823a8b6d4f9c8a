"""The clocks of one attempt: which rank reads which clock, and how its times become job time.

A CPU rank's times are its host's; all ranks of a host share that clock, so that no fit can come between them. A GPU
rank is a clock of its own, since its times hang on the reference events of its own stream. Job time is Unix time as the
clocks' mean sees it: rank time + raw offset of the host (unix - clock, read together at start) + fitted correction.
Hosts that no collective joins are aligned by the messages between them (bridges.py).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from megatronapp.collector.align import FLOOR_NS, Alignment, Anchors
from megatronapp.collector.bridges import Bridges, ClockDomains
from megatronapp.collector.depend import Groups, match_collectives, match_messages
from megatronapp.core.trace.columns import Column, Columns
from megatronapp.core.trace.limits import MAX_COMMUNICATORS, MAX_TIME_NS
from megatronapp.core.trace.span_names import RECEIVES, SENDS, SYMMETRIC
from megatronapp.v1 import trace_pb2

REBOOT_NS = 10_000_000_000
"""Two readings of unix - clock on one node that differ more: the node has started anew, or two nodes share a name."""

OPEN_STEPS = 8
"""Steps whose anchors are waited for; older ones are used as far as they came."""

MAX_BATCHES = 64
"""Of a rank's step, whose anchors are taken: the rest of a long step tells no more."""

HOSTS_PER_RANK, COMMUNICATORS_PER_RANK = 2, 64
"""More than any job has: when there are so many names, most have gone out of use."""

ANCHORS_PER_STEP = 16
"""About how many collectives of one communicator a step contributes, of the large and of the small; more would not tell
more."""

LATE_NS = 500_000
"""An end on a GPU that comes sooner after its operation's begin was enqueued may be the host's, which had not enqueued
the end yet when the device was there. Ends of the 4-byte all-reduces of a step's end, for whose result the host waits,
differ by 50 us for that reason."""

SIZE_CLASSES = 16
"""Operations of one magnitude, bytes to the base 16, are a class."""

LARGE = 5
LARGE_ASYMMETRY_NS = 5_000.0
"""Of operations of 16^LARGE bytes or more, whose members end with another part of the data each: on two H200 those of
8 KiB ended within 0.8 us (median), of 16 MiB always 5 us apart, and of gigabytes 3 to 25 us."""

MAX_NAME_TABLES = 256
"""Kept at once. A rank's names hardly ever change."""

Table = dict[str, npt.NDArray[Any]]
"""Columns of one length, by name."""


@dataclass(frozen=True, slots=True)
class Reading:
    """Job time = rank time + offset_ns, known to +- error_ns; error_ns < 0: not aligned."""

    offset_ns: int
    error_ns: int


@dataclass(slots=True)
class _Host:
    node: str
    raw_offset_ns: int


@dataclass(slots=True)
class _Rank:
    host: int
    clock: int
    on_gpu: bool
    reference_error_ns: int = 0


@dataclass(slots=True)
class _Ends:
    """Ends of one step's collectives, and its messages' starts and ends; one array per column and batch."""

    parts: list[Table] = field(default_factory=list)
    messages: list[Table] = field(default_factory=list)
    complete: set[int] = field(default_factory=set)
    batches: Counter[int] = field(default_factory=Counter)
    """Of each rank."""


class Clocks:
    def __init__(self) -> None:
        self.alignment = Alignment(_asymmetry_ns)
        self.bridges = Bridges()
        self._clock_domains = ClockDomains()
        self._hosts: list[_Host] = []
        self._clocks: dict[object, int] = {}
        self._ranks: dict[int, _Rank] = {}
        self._open: dict[int, _Ends] = {}
        self._passed = 0
        """Newest step that was not waited for any longer."""
        self._communicators: dict[str, int] = {}
        self._operations: dict[str, int] = {}
        self._tables: dict[tuple[str, ...], npt.NDArray[np.int64]] = {}

    def hello(self, rank: int, placement: trace_pb2.Placement, device: int) -> None:
        self._introduce(
            rank,
            _Host(placement.node, placement.host_unix_ns - placement.host_clock_ns),
            on_gpu=device == trace_pb2.DEVICE_CUDA,
        )
        if len(self._hosts) > HOSTS_PER_RANK * len(self._ranks):
            self._forget_hosts()
        self._passed = 0

    def add(
        self,
        rank: int,
        batch: trace_pb2.TraceBatch,
        names: tuple[str, ...],
        columns: Columns,
        communicators: Mapping[int, str],
    ) -> None:
        """Take a batch's anchors; a step all ranks have finished goes into the fit."""
        if rank not in self._ranks:
            return
        self._ranks[rank].reference_error_ns = batch.reference_error_ns
        if batch.step <= self._passed:
            return
        if len(self._communicators) > COMMUNICATORS_PER_RANK * len(self._ranks):
            self.flush()
            self._communicators.clear()
        ends = self._open.setdefault(batch.step, _Ends())
        ends.batches[rank] += 1
        if ends.batches[rank] <= MAX_BATCHES:
            self._take(ends, rank, names, columns, communicators)
        if batch.last:
            ends.complete.add(rank)
        if len(ends.complete) == len(self._ranks):
            self._close(batch.step)
        while len(self._open) > OPEN_STEPS:
            self._passed = min(self._open)
            self._close(self._passed)

    def _take(
        self,
        ends: _Ends,
        rank: int,
        names: tuple[str, ...],
        columns: Columns,
        communicators: Mapping[int, str],
    ) -> None:
        part = self._symmetric(rank, names, columns, communicators) if len(self._clocks) > 1 else None
        if part is not None:
            ends.parts.append(part)
        if self._clock_domains.several and (messages := self._messages(rank, names, columns)) is not None:
            ends.messages.append(messages)

    def at(self, rank: int, rank_time_ns: int) -> Reading:
        """What is known of the rank's clock at one of its own times."""
        if rank not in self._ranks:
            return Reading(0, -1)
        state = self._ranks[rank]
        raw = self._hosts[state.host].raw_offset_ns
        correction = self.alignment.correction(state.clock, rank_time_ns + raw)
        error = self.alignment.error_ns(state.clock, rank_time_ns + raw)
        if error < 0 and len(self._hosts) == 1:
            return Reading(raw, state.reference_error_ns)
        if not _plausible(correction):
            return Reading(raw, -1)
        if not self._clock_domains.several:
            return Reading(raw + round(correction), error)
        domain, at_ns = self._clock_domains.root(state.host), rank_time_ns + raw + round(correction)
        bridge = self.bridges.error_ns(domain, at_ns)
        within = error if error >= 0 or domain != state.host else state.reference_error_ns
        error = min(within + bridge, MAX_TIME_NS) if min(within, bridge) >= 0 else -1
        correction += self.bridges.correction(domain, at_ns)
        return Reading(raw + round(correction), error) if _plausible(correction) else Reading(raw, -1)

    def latest(self, rank: int) -> Reading:
        """What is known of the rank's clock at the time of its last anchor."""
        state = self._ranks.get(rank)
        if state is None:
            return Reading(0, -1)
        return self.at(rank, self.alignment.latest_ns(state.clock) - self._hosts[state.host].raw_offset_ns)

    def clock_of(self, rank: int) -> int | None:
        return self._ranks[rank].clock if rank in self._ranks else None

    def nodes(self) -> dict[str, float]:
        """Mean fitted correction in seconds of each node's clocks."""
        corrections: dict[str, list[float]] = {}
        for state in self._ranks.values():
            value = self.alignment.latest_correction(state.clock)
            corrections.setdefault(self._hosts[state.host].node, []).append(value)
        return {node: sum(values) / len(values) / 1e9 for node, values in corrections.items()}

    def flush(self) -> None:
        """Use what has come of all open steps."""
        for step in sorted(self._open):
            self._close(step)

    def _introduce(self, rank: int, host: _Host, *, on_gpu: bool) -> None:
        number = self._host(host.node, host.raw_offset_ns)
        key: object = ("gpu", rank, number) if on_gpu else ("host", number)
        clock = self._clocks.setdefault(key, len(self._clocks))
        self.alignment.grow(len(self._clocks))
        self._ranks[rank] = _Rank(number, clock, on_gpu)

    def _forget_hosts(self) -> None:
        """Those that no rank is on any more, and their clocks; how the others run is learnt anew."""
        kept = {rank: (self._hosts[state.host], state.on_gpu) for rank, state in self._ranks.items()}
        self._open.clear()
        self._hosts.clear()
        self._clocks.clear()
        self.alignment, self.bridges, self._clock_domains = Alignment(_asymmetry_ns), Bridges(), ClockDomains()
        for rank, (host, on_gpu) in kept.items():
            self._introduce(rank, host, on_gpu=on_gpu)

    def _host(self, node: str, raw_offset_ns: int) -> int:
        for index, host in enumerate(self._hosts):
            if host.node == node and abs(host.raw_offset_ns - raw_offset_ns) < REBOOT_NS:
                return index
        self._hosts.append(_Host(node, raw_offset_ns))
        self._clock_domains.grow(len(self._hosts))
        return len(self._hosts) - 1

    def _symmetric(
        self, rank: int, names: tuple[str, ...], columns: Columns, communicators: Mapping[int, str]
    ) -> Table | None:
        rows = _anchors(columns)
        operation = self._symmetric_operations(names)[columns.take("name", rows)]
        end = np.add(columns.take("start_ns", rows), columns.take("duration_ns", rows))
        enqueue = columns.take("enqueue_ns", rows)
        good = (operation >= 0) & ((enqueue == 0) | (end - enqueue > LATE_NS))
        rows, operation, end = rows[good], operation[good], end[good]
        if not len(rows):
            return None
        state = self._ranks[rank]
        return {
            "communicator": self._numbers(columns.take("communicator", rows).tolist(), communicators),
            "sequence": columns.take("sequence", rows).astype(np.int64),
            "operation": operation,
            "magnitude": _magnitude(columns.take("bytes", rows)),
            "rank": np.full(len(rows), rank),
            "clock": np.full(len(rows), state.clock),
            "end_ns": end.astype(np.int64) + self._hosts[state.host].raw_offset_ns,
        }

    def _messages(self, rank: int, names: tuple[str, ...], columns: Columns) -> Table | None:
        """When the batch's messages were begun to be sent, and when they had been received."""
        kind, peer = columns.sent("kind"), columns.sent("peer")
        if kind is None or peer is None:
            return None
        rows = np.flatnonzero((kind == trace_pb2.SPAN_KIND_P2P) & (peer >= 0))
        name = columns.take("name", rows)
        sends, receives = (np.array([table.get(n, -1) for n in names] or [-1])[name] for table in (SENDS, RECEIVES))
        is_send, peers = sends >= 0, peer[rows].astype(np.int64)
        at = columns.take("start_ns", rows) + np.where(is_send, 0, columns.take("duration_ns", rows))
        return {
            "direction": np.maximum(sends, receives),
            "sender": np.where(is_send, rank, peers),
            "receiver": np.where(is_send, peers, rank),
            "sequence": columns.take("sequence", rows).astype(np.int64),
            "is_send": is_send,
            "message": columns.take("message", rows).astype(np.int64),
            "at_ns": at.astype(np.int64) + self._hosts[self._ranks[rank].host].raw_offset_ns,
        }

    def _symmetric_operations(self, names: tuple[str, ...]) -> npt.NDArray[np.int64]:
        """Number of each name's operation; -1: not symmetric."""
        if names not in self._tables:
            if len(self._tables) >= MAX_NAME_TABLES:
                self._tables.clear()
            known = self._operations
            numbers = [known.setdefault(name, len(known)) if name in SYMMETRIC else -1 for name in names]
            self._tables[names] = np.array(numbers or [-1], np.int64)
        return self._tables[names]

    def _numbers(self, indices: list[int], communicators: Mapping[int, str]) -> npt.NDArray[np.int64]:
        """Numbers that mean the same on all ranks."""
        known = self._communicators
        return np.array([known.setdefault(communicators.get(index, ""), len(known)) for index in indices], np.int64)

    def _close(self, step: int) -> None:
        ends = self._open.pop(step)
        if ends.parts:
            self._fit_collectives(_joined(ends.parts))
        if ends.messages and self._clock_domains.several:
            self._fit_messages(step, _joined(ends.messages))

    def _fit_collectives(self, table: Table) -> None:
        groups = match_collectives(table["communicator"], table["sequence"], table["operation"], table["rank"])
        rows, was_fitted = groups.rows, self.alignment.fitted
        self.alignment.observe(
            Anchors(
                group=groups.group,
                kind=self._classes(table, groups),
                sequence=table["sequence"][rows],
                clock=table["clock"][rows],
                end_ns=table["end_ns"][rows],
            )
        )
        if not self._clock_domains.several:
            return
        if self._clock_domains.join(self._neighbours(groups, table["rank"])) or self.alignment.fitted != was_fitted:
            self.bridges = Bridges()

    def _classes(self, table: Table, groups: Groups) -> npt.NDArray[np.int64]:
        """Of each row: its operation and magnitude, those of its group's first member."""
        kind = (table["operation"] * SIZE_CLASSES + table["magnitude"])[groups.rows]
        first = np.flatnonzero(np.diff(groups.group, prepend=-1))
        classes: npt.NDArray[np.int64] = kind[first][groups.group]
        return classes

    def _neighbours(self, groups: Groups, ranks: Column) -> list[tuple[int, int]]:
        """Pairs of hosts with members in one collective."""
        hosts = self._hosts_of(ranks[groups.rows])
        inside = np.flatnonzero(np.diff(groups.group) == 0)
        pairs = np.unique(np.stack([hosts[inside], hosts[inside + 1]], axis=1), axis=0)
        return [(int(one), int(other)) for one, other in pairs]

    def _fit_messages(self, step: int, table: Table) -> None:
        known = np.isin(table["sender"], list(self._ranks)) & np.isin(table["receiver"], list(self._ranks))
        table = {name: column[known] for name, column in table.items()}
        keys = ("direction", "sender", "receiver", "sequence", "is_send", "message")
        edges = match_messages(*(table[name] for name in keys))
        sender, receiver = table["sender"][edges.source], table["receiver"][edges.source]
        self.bridges.observe(
            step,
            self._clock_domains.of(self._hosts_of(sender)),
            self._clock_domains.of(self._hosts_of(receiver)),
            self._aligned(sender, table["at_ns"][edges.source]),
            self._aligned(receiver, table["at_ns"][edges.target]),
        )

    def _hosts_of(self, ranks: Column) -> npt.NDArray[np.int64]:
        return np.array([self._ranks[rank].host for rank in ranks.tolist()], np.int64)

    def _aligned(self, ranks: Column, at_ns: Column) -> npt.NDArray[np.int64]:
        """Times by the clocks of the ranks' clock domains."""
        pairs = zip(ranks.tolist(), at_ns.tolist(), strict=True)
        return np.array([at + round(self.alignment.correction(self._ranks[r].clock, at)) for r, at in pairs], np.int64)


def _plausible(correction_ns: float) -> bool:
    """Not where a fit went astray, by clocks that are no clocks: such a correction may be no number at all."""
    return abs(correction_ns) <= MAX_TIME_NS


def _joined(parts: list[Table]) -> Table:
    return {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}


def _asymmetry_ns(kind: int) -> float:
    return FLOOR_NS if kind % SIZE_CLASSES < LARGE else LARGE_ASYMMETRY_NS


def _magnitude(size_bytes: Column) -> npt.NDArray[np.int64]:
    """Logarithm to the base 16, cut off."""
    return np.log2(np.maximum(size_bytes, 1).astype(np.float64)).astype(np.int64) // 4


def _anchors(columns: Columns) -> npt.NDArray[np.intp]:
    """Rows of some collectives of each communicator, so that all its members choose the same ones without asking each
    other: one in 2^n by a hash of the sequence number; where members' counts make n differ, one's choice holds the
    other's."""
    kind, sequence, communicator = (columns.sent(name) for name in ("kind", "sequence", "communicator"))
    if kind is None or sequence is None or communicator is None:
        return np.empty(0, np.intp)
    rows = np.flatnonzero(kind == trace_pb2.SPAN_KIND_COLLECTIVE)
    if not len(rows) or communicator[rows].max() > MAX_COMMUNICATORS:
        return np.empty(0, np.intp)
    large = columns.take("bytes", rows) >= 16**LARGE
    of_row, number = communicator[rows].astype(np.int64) * 2 + large, sequence[rows].astype(np.int64)
    halvings = np.log2(np.maximum(np.bincount(of_row) / ANCHORS_PER_STEP, 1)).astype(np.int64)
    left_out = ((1 << halvings) - 1)[of_row] & ((number * 2246822519) >> 15)
    chosen: npt.NDArray[np.intp] = rows[left_out == 0]
    return chosen[(sequence[chosen] > 0) & (communicator[chosen] > 0)]
