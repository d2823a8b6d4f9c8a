"""Tables: a simulated step as rows, and as the StepTable that the detector's assembler makes of its messages."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from bench.scale.families import KINDS, NAMES, Families
from bench.scale.job import Job, Step
from bench.scale.layout import EP, Layout
from megatronapp.detector.steps import Floats, Group, Ints, RankTable, Rows, StepTable


@dataclass(frozen=True, slots=True)
class Present:
    """The rows that ranks have in a step, in order of rank; arrays of one entry a row."""

    place: Ints
    """Index into a flat (ranks, families) array."""
    rank: Ints
    family: Ints
    operation: Ints
    """Index into NAMES."""
    kind: Ints
    chunk: Ints
    group: Ints
    """Index of the rank's own communicator, from 1; 0: none."""
    communicator: Ints
    """Index of it among the job's, −1: none."""
    peer: Ints
    count: Ints
    bytes: Ints
    covered: Ints
    """1: a forward or backward row, which carries the covariates."""
    sends_tokens: Ints
    """1: the exchange with experts, whose bytes tell their load."""


class RowBook:
    """Which rows the ranks of a job have; the same in most steps."""

    def __init__(self, families: Families) -> None:
        self.families, self.layout = families, families.layout
        self.kinds = [kind for kind, _ in self.layout.groups(0)]
        """Of groups, in the order of each rank's communicators."""
        self.groups, self._group_of = _communicators(self.layout, self.kinds)
        seldom = np.array([family.seldom for family in families.all])
        self._usual = self._present((families.count > 0) & ~seldom)
        self._seldom = np.flatnonzero(seldom)

    def present(self, step: Step) -> Present:
        rare = step.total_ns[:, self._seldom] > 0
        if not rare.any():
            return self._usual
        shown = self.families.count > 0
        shown[:, self._seldom] = rare
        return self._present(shown)

    def _present(self, shown: np.ndarray) -> Present:
        all_families = self.families.all
        place = np.flatnonzero(shown)
        rank, family = place // len(all_families), place % len(all_families)
        operation = np.array([NAMES.index(each.name) for each in all_families])[family]
        local = np.array([self.kinds.index(each.group) + 1 if each.group in self.kinds else 0 for each in all_families])
        group = local[family]
        count = self.families.count.reshape(-1)[place]
        return Present(
            place=place,
            rank=rank,
            family=family,
            operation=operation,
            kind=KINDS[operation],
            chunk=np.array([each.chunk for each in all_families])[family],
            group=group,
            communicator=np.where(group > 0, self._group_of[rank, np.maximum(group - 1, 0)], -1),
            peer=self.families.peer.reshape(-1)[place],
            count=count,
            bytes=np.array([each.bytes for each in all_families])[family] * count,
            covered=np.array([each.name in ("forward", "backward") for each in all_families])[family].astype(np.int64),
            sends_tokens=np.array([each.group == EP for each in all_families])[family].astype(np.int64),
        )


def _communicators(layout: Layout, kinds: list[str]) -> tuple[tuple[Group, ...], Ints]:
    """The job's, in the order in which its ranks name them, and the place of each rank's own among them."""
    found: dict[tuple[str, tuple[int, ...]], int] = {}
    own = np.full((layout.world, max(1, len(kinds))), -1)
    for rank in range(layout.world):
        for column, group in enumerate(layout.groups(rank)):
            own[rank, column] = found.setdefault(group, len(found))
    return tuple(Group(group_id(*group), *group) for group in found), own


def group_id(kind: str, ranks: tuple[int, ...]) -> str:
    return f"{kind}:{'-'.join(map(str, ranks))}"


@dataclass(frozen=True, slots=True)
class Values:
    """Of a step's rows, what changes from step to step."""

    total_ns: Ints
    least_ns: Ints
    most_ns: Ints
    tokens: Ints
    squares: Ints
    bytes: Ints


def values(step: Step, present: Present) -> Values:
    place, rank = present.place, present.rank
    return Values(
        step.total_ns.reshape(-1)[place],
        step.least_ns.reshape(-1)[place],
        step.most_ns.reshape(-1)[place],
        present.covered * step.tokens[rank],
        present.covered * step.squares[rank],
        np.where(present.sends_tokens > 0, step.sent_bytes[rank], present.bytes),
    )


class TableMaker:
    """StepTables without messages: what Assembler makes of those of a step that all ranks told of."""

    def __init__(self, job: Job, book: RowBook, ranks: RankTable) -> None:
        self._layout, self._book, self._ranks = job.layout, book, ranks

    def table(self, step: Step) -> StepTable:
        present = self._book.present(step)
        of = values(step, present)
        n = self._layout.world
        return StepTable(
            step=step.number,
            ranks=self._ranks,
            rows=self._rows(present, of),
            operations=NAMES,
            kinds=np.where(np.isin(np.arange(len(NAMES)), present.operation), KINDS, 0),
            communicators=self._book.groups,
            start=np.full(n, np.nan),
            duration=_seconds(step.duration_ns),
            cpu=np.zeros(n),
            microbatches=self._layout.microbatches,
            virtual_stages=self._layout.vpp,
            phases=frozenset(int(phase) for phase in step.phases),
            received_unix_ns=int(step.ended_unix_ns.min()),
        )

    def _rows(self, present: Present, of: Values) -> Rows:
        nothing, none = self._zeros(len(present.place))
        return Rows(
            rank=present.rank,
            operation=present.operation,
            chunk=present.chunk,
            communicator=present.communicator,
            peer=present.peer,
            count=present.count,
            duration=_seconds(of.total_ns),
            duration_min=_seconds(of.least_ns),
            duration_max=_seconds(of.most_ns),
            cpu=nothing,
            cpu_min=nothing,
            cpu_max=nothing,
            launch_lag=nothing,
            launch_lag_max=nothing,
            tokens=of.tokens.astype(np.float64),
            length_squares=of.squares.astype(np.float64),
            bytes=of.bytes.astype(np.float64),
            starved_count=none,
            starved=nothing,
            starved_tokens=nothing,
            starved_length_squares=nothing,
        )

    @cached_property
    def _most(self) -> tuple[Floats, Ints]:
        most = self._layout.world * len(self._book.families)
        return np.zeros(most), np.zeros(most, np.int64)

    def _zeros(self, rows: int) -> tuple[Floats, Ints]:
        floats, ints = self._most
        return floats[:rows], ints[:rows]


def _seconds(nanoseconds: Ints) -> Floats:
    return nanoseconds.astype(np.float64) * 1e-9
