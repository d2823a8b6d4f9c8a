"""One step's summaries as arrays: a StepTable. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from operator import is_

import numpy as np

from megatronapp.core.trace.columns import Column, Columns, joined_summaries
from megatronapp.detector.members import Member
from megatronapp.detector.steps import Floats, Group, Ints, RankTable, Rows, StepTable
from megatronapp.v1 import trace_pb2

NS = 1e-9


@dataclass(frozen=True, slots=True)
class Arrived:
    """A rank's summary of one step."""

    summary: trace_pb2.StepSummary
    columns: Columns
    """NO_COLUMNS: the summary can't be understood."""
    received_unix_ns: int
    start_ns: float
    """Job time, nan where the rank's clock is not aligned."""


def tabulate(
    step: int,
    ranks: RankTable,
    members: dict[int, Member],
    arrived: dict[int, Arrived],
    groups: Groups,
    world: int,
) -> StepTable:
    """One step's summaries as arrays. `groups`: of those that arrived; `world`: how many ranks there should be."""
    order = ranks.rank.tolist()
    present = [(i, arrived[rank], members[rank]) for i, rank in enumerate(order) if rank in arrived]
    names = _Names()
    rows = _rows(present, names, groups)
    summaries = [a.summary for _, a, _ in present]
    return StepTable(
        step=step,
        ranks=ranks,
        rows=rows,
        operations=tuple(names.numbers),
        kinds=np.array([names.kinds.get(name, 0) for name in names.numbers], np.int64),
        communicators=tuple(groups.found),
        start=_spread(order, present, [a.start_ns * NS for _, a, _ in present]),
        duration=_spread(order, present, [s.duration_ns * NS for s in summaries]),
        cpu=_spread(order, present, [s.cpu_ns * NS for s in summaries]),
        microbatches=max((m.process.schedule.microbatches for _, _, m in present), default=1) or 1,
        virtual_stages=max((m.process.placement.sizes.virtual_pipeline for _, _, m in present), default=1) or 1,
        peak_activations=max((s.peak_activations for s in summaries), default=0),
        orders=_orders(ranks, [(i, a.summary.order) for i, a, _ in present if a.summary.order]),
        phases=frozenset().union(*[s.phases for s in summaries]),
        received_unix_ns=_first(arrived),
        reduces_beside=any(m.reduces_beside for _, _, m in present),
        nccl=tuple((order[i], a.summary.nccl) for i, a, _ in present if a.summary.nccl),
        ports=tuple((order[i], a.summary.ports) for i, a, _ in present if a.summary.ports),
        missing=tuple(rank for rank in order if rank not in arrived),
        unheard=max(0, max(world, max(order, default=-1) + 1) - len(order)),
    )


def _orders(ranks: RankTable, sent: Sequence[tuple[int, bytes]]) -> tuple[bytes, ...]:
    """Those of the first replica of which each stage has sent one. sent: (index of the rank, its order)."""
    of_replica: dict[int, dict[int, bytes]] = {}
    for i, order in sent:
        of_replica.setdefault(int(ranks.data[i]), {}).setdefault(int(ranks.pipeline[i]), order)
    stages = range(int(ranks.pipeline.max(initial=-1)) + 1)
    whole = (by_stage for _, by_stage in sorted(of_replica.items()) if len(by_stage) == len(stages))
    found = next(whole, {})
    return tuple(found[stage] for stage in stages if stage in found)


class _Names:
    """Operation names in order of appearance, and their span kinds."""

    def __init__(self) -> None:
        self.numbers: dict[str, int] = {}
        self.kinds: dict[str, int] = {}
        self._tables: dict[tuple[str, ...], Ints] = {}

    def lookup(self, table: tuple[str, ...]) -> Ints:
        """Numbers of a message's names."""
        if table not in self._tables:
            self._tables[table] = np.array([self.numbers.setdefault(n, len(self.numbers)) for n in table], np.int64)
        return self._tables[table]


class Groups:
    """Communicators of members in order of appearance. One that a rank has not named yet counts as none."""

    def __init__(self, named: list[Mapping[int, Group]]) -> None:
        """named: of each member, by its own indices; from step to step the same, and looked up once."""
        self.found: list[Group] = []
        self._named, self._numbers = named, dict[str, int]()
        self.lookups = [self._lookup(groups) for groups in named]
        """Of each member, the communicators' numbers by its own indices."""

    def of(self, named: list[Mapping[int, Group]]) -> Groups:
        """Those of these members."""
        known = self._named
        return self if len(known) == len(named) and all(map(is_, known, named)) else Groups(named)

    def _lookup(self, groups: Mapping[int, Group]) -> Ints:
        numbers = np.full(max(groups, default=0) + 2, -1, np.int64)
        for index, group in groups.items():
            if group.id not in self._numbers:
                self._numbers[group.id] = len(self.found)
                self.found.append(group)
            numbers[index] = self._numbers[group.id]
        return numbers


def _rows(present: list[tuple[int, Arrived, Member]], names: _Names, groups: Groups) -> Rows:
    tables = [arrived.columns for _, arrived, _ in present]
    counts = np.array([table.rows for table in tables], np.int64)
    whole = joined_summaries(tables)
    operation = _translated(whole["name"], counts, [names.lookup(table.names) for table in tables])
    communicator = _translated(whole["communicator"], counts, groups.lookups)
    names.kinds |= _kinds(operation, whole["kind"], names)

    def integers(name: str) -> Ints:
        return whole[name].astype(np.int64)

    def seconds(name: str) -> Floats:
        return whole[name].astype(np.float64) * NS

    return Rows(
        rank=np.repeat(np.array([i for i, _, _ in present], np.int64), counts),
        operation=operation,
        chunk=integers("chunk"),
        communicator=communicator,
        peer=integers("peer"),
        count=integers("count"),
        duration=seconds("duration_sum_ns"),
        duration_min=seconds("duration_min_ns"),
        duration_max=seconds("duration_max_ns"),
        cpu=seconds("cpu_sum_ns"),
        cpu_min=seconds("cpu_min_ns"),
        cpu_max=seconds("cpu_max_ns"),
        launch_lag=seconds("launch_lag_sum_ns"),
        launch_lag_max=seconds("launch_lag_max_ns"),
        tokens=whole["tokens"].astype(np.float64),
        length_squares=whole["length_squares"].astype(np.float64),
        bytes=whole["bytes"].astype(np.float64),
        starved_count=integers("starved_count"),
        starved=seconds("starved_sum_ns"),
        starved_tokens=whole["starved_tokens"].astype(np.float64),
        starved_length_squares=whole["starved_length_squares"].astype(np.float64),
    )


def _translated(column: Column, counts: Ints, lookups: list[Ints]) -> Ints:
    """Each message's indices, looked up in its own table; what lies behind a table's end finds its last entry."""
    sizes = np.array([len(lookup) for lookup in lookups], np.int64)
    begins = np.cumsum(sizes) - sizes
    index = np.minimum(column.astype(np.int64), np.repeat(sizes, counts) - 1)
    numbers: Ints = np.concatenate([*lookups, np.zeros(1, np.int64)])
    found: Ints = numbers[np.repeat(begins, counts) + index]
    return found


def _kinds(name: Ints, kind: Column, names: _Names) -> dict[str, int]:
    """The kind of each name that a row has, as the first of them says."""
    kinds = np.full(len(names.numbers), -1, np.int64)
    kinds[name[::-1]] = kind[::-1]
    return {text: value for text, value in zip(names.numbers, kinds.tolist(), strict=True) if value >= 0}


def rank_table(members: dict[int, Member]) -> RankTable:
    order = sorted(members)
    places = [members[rank].process.placement for rank in order]

    def axis(name: str) -> Ints:
        return np.array([getattr(place, name) for place in places], np.int64)

    roles = [place.role for place in places]
    first_stage = _first_stages(roles, axis("pipeline"))
    return RankTable(
        rank=np.array(order, np.int64),
        pipeline=axis("pipeline") + first_stage,
        first_stage=first_stage,
        role=np.array(roles, np.str_) if any(roles) else None,
        data=axis("data"),
        tensor=axis("tensor"),
        context=axis("context"),
        expert=axis("expert"),
        node=np.array([place.node for place in places], np.str_),
        gpu_uuid=np.array([place.gpu_uuid for place in places], np.str_),
        device=np.array([_device(rank, place) for rank, place in zip(order, places, strict=True)], np.str_),
        on_cpu=np.array([members[rank].process.device == trace_pb2.DEVICE_CPU for rank in order], np.bool_),
    )


def _first_stages(roles: list[str], pipeline: Ints) -> Ints:
    """Of each rank, how many stages the roles before its own have: peers are ranks of one role."""
    first, after = np.zeros(len(roles), np.int64), 0
    named = np.array(roles, np.str_)
    for role in sorted(set(roles)):
        here = named == role
        first[here] = after
        after += int(pipeline[here].max()) + 1
    return first


def _device(rank: int, place: trace_pb2.Placement) -> str:
    return place.device_id or place.gpu_uuid or f"{place.node}/{rank}"


def _spread(order: list[int], present: list[tuple[int, Arrived, Member]], values: list[float]) -> Floats:
    """Values of the present ranks over all ranks, nan for the absent."""
    spread = np.full(len(order), np.nan)
    spread[[i for i, _, _ in present]] = values
    return spread


def _first(arrived: dict[int, Arrived]) -> int:
    return min((a.received_unix_ns for a in arrived.values()), default=0)
