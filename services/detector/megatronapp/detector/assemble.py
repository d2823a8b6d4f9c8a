"""RankMessage stream of one attempt → complete StepTables, in the order of the steps. Pure; time is passed in."""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from dataclasses import dataclass, field
from weakref import WeakValueDictionary

import numpy as np

from megatronapp.core.errors import DataError
from megatronapp.core.trace.columns import NO_COLUMNS, Columns, summary_columns
from megatronapp.core.trace.membership import Process
from megatronapp.detector.members import Member
from megatronapp.detector.rewinds import Rewinds
from megatronapp.detector.steps import Group, RankTable, StepTable
from megatronapp.detector.tabulate import Arrived, Groups, rank_table, tabulate
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
        self._groups = Groups([])
        """Of the newest step."""

    def feed(self, process: Process, message: AnyMessage, columns: Columns = NO_COLUMNS) -> list[StepTable]:
        """Take one message of a rank's process; returns the steps that it completes. columns: a summary's, where they
        are known."""
        body = message.message
        if body.HasField("hello"):
            self._apply_hello(process, body.hello)
        member = self.member(process)
        if member is None or not body.HasField("summary") or member.repeats(body.seq):
            return []
        return self._take(member, message, columns) + self._complete()

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

    def _apply_hello(self, process: Process, hello: trace_pb2.Hello) -> None:
        known = self.members.get(process.rank)
        if known is None or known.process is not process:
            known = self.members[process.rank] = Member(process, self._communicators)
            self._rewinds.forget(process.rank)
        known.introduce(hello)
        self.world = max(self.world, process.placement.sizes.world)
        self._ranks = None

    def _take(self, member: Member, message: AnyMessage, columns: Columns) -> list[StepTable]:
        """Returns the steps of before, if the job has gone back with this message."""
        body, rank = message.message, member.process.rank
        summary = body.summary
        member.name(summary.communicators)
        member.missed = 0
        arrived = Arrived(
            summary,
            _understood(summary) if columns is NO_COLUMNS else columns,
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
        understood = {rank: each for rank, each in arrived.items() if each.columns is not NO_COLUMNS}
        self.invalid += len(arrived) - len(understood)
        table = self._table(step, understood)
        self._step_seconds = float(np.nanmax(table.duration))
        return table

    def _table(self, step: int, arrived: dict[int, Arrived]) -> StepTable:
        order = self.ranks.rank.tolist()
        self._groups = self._groups.of([self.members[rank].groups for rank in order if rank in arrived])
        return tabulate(step, self.ranks, self.members, arrived, self._groups, self.world)

    @property
    def ranks(self) -> RankTable:
        """All ranks that have introduced themselves."""
        if self._ranks is None:
            self._ranks = rank_table(self.members)
        return self._ranks


def _understood(summary: trace_pb2.StepSummary) -> Columns:
    """The summary's columns; NO_COLUMNS where it can't be understood."""
    try:
        return summary_columns(summary)
    except DataError:
        return NO_COLUMNS
