"""RankMessage stream of one attempt → complete StepTables, in the order of the steps. Pure; time is passed in."""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from operator import is_
from weakref import WeakValueDictionary

import numpy as np

from megatronapp.core.errors import DataError
from megatronapp.core.trace import columns
from megatronapp.core.trace.membership import Process
from megatronapp.detector.members import Member
from megatronapp.detector.rewinds import Rewinds
from megatronapp.detector.steps import Floats, Group, Ints, RankTable, Rows, StepTable
from megatronapp.v1 import trace_pb2

NS = 1e-9
LATENESS_SECONDS = 2.0
"""How long a step waits for its last ranks, after its first summary; twice a step's duration when that is longer."""
MAX_PATIENCE_SECONDS = 120.0
"""It waits no longer, whatever its ranks say of its duration: twice a step of a minute."""
MAX_WAITING = 1024
"""Steps that wait at a time: steps of 2 ms for LATENESS_SECONDS. With more the oldest is out without its last ranks."""
MAX_AHEAD = 2 * MAX_WAITING
"""A step further ahead is believed when a second rank tells of it."""
FORGIVEN = 3
"""Steps that a rank may miss before later steps no longer wait for it."""
AnyMessage = trace_pb2.RankMessage | trace_pb2.SentMessage


@dataclass(frozen=True, slots=True)
class Arrived:
    """A rank's summary of one step."""

    summary: trace_pb2.StepSummary
    received_unix_ns: int
    start_ns: float
    """Job time, nan where the rank's clock is not aligned."""


@dataclass(slots=True)
class _Waiting:
    """A step that is not out yet."""

    since_unix_ns: int
    """When its first summary came."""
    arrived: dict[int, Arrived] = field(default_factory=dict)
    reached: int = 0
    """Ranks that have sent it or a later one; spares a look at all ranks a message."""


class Assembler:
    """Collects the summaries of each step until every rank has sent its own or can't be expected to any more.

    A duplicate is counted once, a summary of a step that is already out is counted in `late` and dropped, and a message
    that can't be understood is counted in `invalid` and left out. One far ahead that one rank alone tells is counted in
    `far` and dropped, since all others would come late after it. Where the job goes back to an earlier step, its steps
    come once more.
    """

    def __init__(self) -> None:
        self.members: dict[int, Member] = {}
        self.world = 0
        """Ranks that the job has, as its members say; 0 before the first hello."""
        self._communicators = WeakValueDictionary[str, Group]()
        """Those that a rank or a step still refers to."""
        self.late = 0
        self.invalid = 0
        self.far = 0
        self._waiting: dict[int, _Waiting] = {}
        self._order: list[int] = []
        """The waiting steps, sorted."""
        self._newest: dict[int, int] = {}
        self._needed = 0
        """Ranks that a step waits for, once one is out; before, all that were heard of."""
        self._emitted = 0
        self._rewinds = Rewinds[Arrived]()
        self._step_seconds = 0.0
        self._ranks: RankTable | None = None
        self._groups = _Groups([])
        """Of the newest step."""

    def feed(self, process: Process, message: AnyMessage) -> list[StepTable]:
        """Take one message of a rank's process; returns the steps that it completes."""
        body = message.message
        if body.HasField("hello"):
            self._apply_hello(process, body.hello.communicators)
        member = self.member(process)
        if member is None or not body.HasField("summary") or member.repeats(body.seq):
            return []
        return self._take(member, message) + self._complete()

    def member(self, process: Process) -> Member | None:
        """None where the process's Hello has not come."""
        member = self.members.get(process.rank)
        return member if member is not None and member.process is process else None

    def expire(self, unix_ns: int) -> list[StepTable]:
        """The steps that have waited long enough."""
        patience = max(LATENESS_SECONDS, min(2 * self._step_seconds, MAX_PATIENCE_SECONDS)) / NS
        overdue = {step for step, waiting in self._waiting.items() if unix_ns - waiting.since_unix_ns > patience}
        for step in [step for step in overdue if self._is_far(step)]:
            overdue.remove(step)
            self._drop(step)
        return [self._emit(step) for step in self._order[: bisect_right(self._order, max(overdue, default=0))]]

    def _apply_hello(self, process: Process, communicators: Sequence[trace_pb2.Communicator]) -> None:
        known = self.members.get(process.rank)
        if known is None or known.process is not process:
            known = self.members[process.rank] = Member(process, self._communicators)
            self._rewinds.forget(process.rank)
        known.name(communicators)
        self.world = max(self.world, process.placement.sizes.world)
        self._ranks = None

    def _take(self, member: Member, message: AnyMessage) -> list[StepTable]:
        """Returns the steps of before, if the job has gone back with this message."""
        body, rank = message.message, member.process.rank
        summary = body.summary
        member.name(summary.communicators)
        member.missed = 0
        arrived = Arrived(
            summary,
            message.received_unix_ns,
            float(summary.start_ns + message.clock_offset_ns) if message.clock_error_ns >= 0 else np.nan,
        )
        newest = body.seq == member.newest
        if self._rewinds.is_behind(rank, summary.step, newest=newest):
            self.late += 1
        elif summary.step > self._emitted:
            self.late += self._rewinds.went_on(rank)
            self._keep(rank, arrived)
        elif newest and summary.step <= self._newest.get(rank, 0):
            self.late += self._rewinds.note(rank, summary.step, arrived)
            if self._rewinds.of_most(len(self._expected())):
                return self._go_back()
        else:
            self.late += 1
        return []

    def _keep(self, rank: int, arrived: Arrived) -> None:
        number = arrived.summary.step
        if number not in self._waiting:
            self._wait(number, arrived.received_unix_ns)
        waiting = self._waiting[number]
        waiting.arrived.setdefault(rank, arrived)
        waiting.since_unix_ns = min(waiting.since_unix_ns, arrived.received_unix_ns)
        before, order = self._newest.get(rank, 0), self._order
        for step in order[bisect_right(order, before) : bisect_right(order, number)]:
            self._waiting[step].reached += 1
        self._newest[rank] = max(number, before)

    def _go_back(self) -> list[StepTable]:
        """What still waits is of before, and is not waited for any more."""
        before = [self._emit(step) for step in list(self._order)]
        back = self._rewinds.take(self._newest)
        self._newest.clear()
        self._emitted = min(step for steps in back.values() for step in steps) - 1
        for rank, steps in back.items():
            for arrived in steps.values():
                self._keep(rank, arrived)
        return before

    def _wait(self, step: int, unix_ns: int) -> None:
        begun = self._waiting[step] = _Waiting(unix_ns)
        if self._order and step < self._order[-1]:
            begun.reached = sum(newest >= step for newest in self._newest.values())
        insort(self._order, step)

    def _complete(self) -> list[StepTable]:
        """Steps for which every expected rank has sent its summary, or that of a later step."""
        done: list[StepTable] = []
        if len(self._order) > MAX_WAITING and self._is_far(self._order[-1]):
            self._drop(self._order[-1])
        while self._order and (len(self._order) > MAX_WAITING or self._is_complete(self._order[0])):
            done.append(self._emit(self._order[0]))
        return done

    def _is_complete(self, step: int) -> bool:
        if self._waiting[step].reached < (self._needed if self._emitted else len(self.members)):
            return False
        if self._emitted < FORGIVEN and len(self.members) < self.world:
            return False
        return all(self._newest.get(rank, 0) >= step for rank in self._expected()) and not self._is_far(step)

    def _is_far(self, step: int) -> bool:
        """Whether a step lies far ahead, and one rank of several alone tells of it."""
        senders = len(self._waiting[step].arrived)
        return step > self._emitted + MAX_AHEAD and senders < min(2, len(self.members))

    def _drop(self, step: int) -> None:
        dropped = self._waiting.pop(step).arrived
        self.far += len(dropped)
        del self._order[bisect_left(self._order, step)]
        for rank in dropped:
            sent = (step for step in reversed(self._order) if rank in self._waiting[step].arrived)
            self._newest[rank] = next(sent, self._emitted)

    def _expected(self) -> list[int]:
        """Ranks that a step waits for: all that were ever heard of, but those that have long been silent. The first
        steps wait for those that the job only says to have, too."""
        return [rank for rank, member in self.members.items() if member.missed < FORGIVEN]

    def _emit(self, step: int) -> StepTable:
        arrived = self._waiting.pop(step).arrived
        del self._order[bisect_left(self._order, step)]
        for rank, member in self.members.items():
            if rank not in arrived:
                member.missed += 1
        self._emitted = step
        self._needed = len(self._expected())
        table = self._tabulate(step, arrived)
        self._step_seconds = float(np.nanmax(table.duration))
        return table

    def _tabulate(self, step: int, arrived: dict[int, Arrived]) -> StepTable:
        try:
            return self._table(step, arrived)
        except DataError:
            understood = {rank: each for rank, each in arrived.items() if _understood(each.summary)}
            self.invalid += len(arrived) - len(understood)
            return self._table(step, understood)

    def _table(self, step: int, arrived: dict[int, Arrived]) -> StepTable:
        order = self.ranks.rank.tolist()
        self._groups = self._groups.of([self.members[rank].groups for rank in order if rank in arrived])
        return _tabulate(step, self.ranks, self.members, arrived, self._groups, self.world)

    @property
    def ranks(self) -> RankTable:
        """All ranks that have introduced themselves."""
        if self._ranks is None:
            self._ranks = _rank_table(self.members)
        return self._ranks


def _tabulate(
    step: int,
    ranks: RankTable,
    members: dict[int, Member],
    arrived: dict[int, Arrived],
    groups: _Groups,
    world: int,
) -> StepTable:
    """One step's summaries as arrays. `groups`: of those that arrived; `world`: how many ranks there should be. Raises
    DataError when a summary can't be understood."""
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
        phases=frozenset(int(p) for s in summaries for p in s.phases),
        received_unix_ns=_first(arrived),
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


class _Groups:
    """Communicators of members in order of appearance. One that a rank has not named yet counts as none."""

    def __init__(self, named: list[Mapping[int, Group]]) -> None:
        """named: of each member, by its own indices; from step to step the same, and looked up once."""
        self.found: list[Group] = []
        self._named, self._numbers = named, dict[str, int]()
        self.lookups = [self._lookup(groups) for groups in named]
        """Of each member, the communicators' numbers by its own indices."""

    def of(self, named: list[Mapping[int, Group]]) -> _Groups:
        """Those of these members."""
        known = self._named
        return self if len(known) == len(named) and all(map(is_, known, named)) else _Groups(named)

    def _lookup(self, groups: Mapping[int, Group]) -> Ints:
        numbers = np.full(max(groups, default=0) + 2, -1, np.int64)
        for index, group in groups.items():
            if group.id not in self._numbers:
                self._numbers[group.id] = len(self.found)
                self.found.append(group)
            numbers[index] = self._numbers[group.id]
        return numbers


def _rows(present: list[tuple[int, Arrived, Member]], names: _Names, groups: _Groups) -> Rows:
    counts = np.array([arrived.summary.rows for _, arrived, _ in present], np.int64)
    whole = columns.joined_summaries([arrived.summary for _, arrived, _ in present])
    operation = _translated(whole["name"], counts, [names.lookup(tuple(a.summary.names)) for _, a, _ in present])
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


def _understood(summary: trace_pb2.StepSummary) -> bool:
    try:
        columns.summary_columns(summary)
    except DataError:
        return False
    return True


def _translated(column: columns.Column, counts: Ints, lookups: list[Ints]) -> Ints:
    """Each message's indices, looked up in its own table; what lies behind a table's end finds its last entry."""
    sizes = np.array([len(lookup) for lookup in lookups], np.int64)
    begins = np.cumsum(sizes) - sizes
    index = np.minimum(column.astype(np.int64), np.repeat(sizes, counts) - 1)
    numbers: Ints = np.concatenate([*lookups, np.zeros(1, np.int64)])
    found: Ints = numbers[np.repeat(begins, counts) + index]
    return found


def _kinds(name: Ints, kind: columns.Column, names: _Names) -> dict[str, int]:
    """The kind of each name that a row has."""
    used, rows = np.unique(name, return_index=True)
    texts = list(names.numbers)
    return {texts[number]: int(value) for number, value in zip(used, kind[rows], strict=True)}


def _rank_table(members: dict[int, Member]) -> RankTable:
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
