"""What each rank did by itself between two calls of NCCL, without waiting for others: from host clocks alone.

A rank is in a collective until the last member has called it. What passes from there to the rank's next call is its
own work; had it waited for others, it would have been let go by them. So work is told apart from waiting though no log
says when an operation ended:

    rank 0   |call 7 ......waits......|--work--|call 8
    rank 1   |-----------work---------|call 7  |--work--|call 8

A host that calls the next operation before the last member has called this one does not wait for it, but runs ahead of
its device; its work is then the time between its calls. Where it can't be told what a rank waited for, its work is not
known (NaN): after a message whose other end is not known, or after a send that its receiver takes late, as a send may
or may not wait.

Clocks of hosts differ. A member does not leave a collective before another one has come: each that two ranks take part
in bounds by how much their clocks can differ. Where no difference at all is possible, clocks are taken as they are.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from itertools import count
from typing import Any

import numpy as np
import numpy.typing as npt

from megatronapp.detector.formats.megatrace import Logs, users_of
from megatronapp.detector.formats.megatrace_log import RECV, SEND, Call
from megatronapp.detector.steps import Floats, Ints

CLOCK_ERROR_SECONDS = 0.01
"""By so much the clocks of hosts may differ that nothing speaks against: NTP keeps them closer."""
NS = 1e-9
Booleans = npt.NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class Calls:
    """The calls of one rank, in order of time."""

    at: Floats
    """Seconds of its own clock since `MatchedCalls.origin_ns`."""
    calls: tuple[Call, ...]
    sends: Booleans

    @property
    def next_at(self) -> Floats:
        return np.append(self.at[1:], np.inf)


@dataclass(frozen=True, slots=True)
class MatchedOperations:
    """The operations of one communicator that all its members have called, in order; of a pair, in one direction."""

    group: str
    members: tuple[int, ...]
    at: Floats
    """operations x members, seconds of each member's clock."""
    places: Ints
    """operations x members: where in the member's calls."""
    collective: bool


@dataclass(frozen=True, slots=True)
class MatchedCalls:
    calls: Mapping[int, Calls]
    """By rank."""
    operations: tuple[MatchedOperations, ...]
    users: Mapping[str, tuple[int, ...]]
    """Who has called anything in each communicator."""
    alone: frozenset[str]
    """Communicators of one rank."""
    origin_ns: int
    """Unix time of the first call."""


@dataclass(frozen=True, slots=True)
class Clocks:
    ahead: Mapping[int, float]
    """By how many seconds each rank's clock is ahead of the others'."""
    slack: Mapping[tuple[str, int], float]
    """By communicator and member: how much farther its clock could be ahead, for all that is seen in this one."""
    corrected: bool = field(default=False)
    """Whether clocks were found to differ."""


def gather(logs: Logs) -> MatchedCalls:
    """Who met whom, and when."""
    origin = min(log.history[0].at_ns for log in logs.ranks.values())
    calls = {rank: _calls(log.history, origin) for rank, log in logs.ranks.items()}
    places = {rank: _places(own) for rank, own in calls.items()}
    found = [
        _matched(group, of, [places[rank][group, ""] for rank in of], calls, collective=True)
        for group, of in logs.members.items()
        if len(of) > 1 and not set(of) & logs.absent and all((group, "") in places[rank] for rank in of)
    ]
    found += [
        _matched(group, pair, [places[pair[0]][group, SEND], places[pair[1]][group, RECV]], calls, collective=False)
        for group, pair in logs.message_pairs
        if (group, SEND) in places[pair[0]] and (group, RECV) in places[pair[1]]
    ]
    alone = {group for group, of in logs.members.items() if len(of) == 1} if not logs.absent else set()
    return MatchedCalls(
        calls, tuple(each for each in found if len(each.at)), users_of(logs.ranks), frozenset(alone), origin
    )


def _calls(history: tuple[Call, ...], origin: int) -> Calls:
    at = np.array([(call.at_ns - origin) for call in history], np.float64) * NS
    return Calls(at, history, np.array([call.operation == SEND for call in history], np.bool_))


Places = dict[tuple[str, str], dict[int, int]]
"""By communicator and, of messages, direction: number of each operation to its place in the rank's calls."""


def _places(calls: Calls) -> Places:
    """Collectives by their own number, messages by counting them: a message's number is another at its other end."""
    found: defaultdict[tuple[str, str], dict[int, int]] = defaultdict(dict)
    counted: defaultdict[tuple[str, str], count[int]] = defaultdict(count)
    for place, call in enumerate(calls.calls):
        message = call.operation if call.operation in (SEND, RECV) else ""
        number = next(counted[call.group, message]) if message else call.number
        found[call.group, message].setdefault(number, place)
    return dict(found)


def _matched(
    group: str,
    members: tuple[int, ...],
    places: list[dict[int, int]],
    calls: Mapping[int, Calls],
    *,
    collective: bool,
) -> MatchedOperations:
    numbers = sorted(set(places[0]).intersection(*places[1:]))
    table = np.array([[own[number] for own in places] for number in numbers], np.int64).reshape(-1, len(members))
    at = np.column_stack([calls[rank].at[table[:, column]] for column, rank in enumerate(members)])
    return MatchedOperations(group, members, at, table, collective)


def clocks(found: MatchedCalls) -> Clocks:
    """How far the clocks of ranks differ."""
    collectives = [each for each in found.operations if each.collective]
    bounds = [bound for each in collectives for bound in _bounds(each, found.calls)]
    sound = [bound for bound in bounds if bound.least <= bound.most]
    corrected = any(not bound.least <= 0 <= bound.most for bound in sound)
    ahead = _joined(found.calls, sound) if corrected else dict.fromkeys(found.calls, 0.0)
    slack: dict[tuple[str, int], float] = {}
    for bound in sound:
        plausible = CLOCK_ERROR_SECONDS if bound.least <= 0 <= bound.most else np.inf
        apart = ahead[bound.rank] - ahead[bound.other]
        for rank, more in ((bound.rank, bound.most - apart), (bound.other, apart - bound.least)):
            known = slack.get((bound.group, rank), CLOCK_ERROR_SECONDS if plausible < np.inf else np.inf)
            slack[bound.group, rank] = max(0.0, min(known, plausible, more))
    return Clocks(ahead, slack, corrected)


@dataclass(frozen=True, slots=True)
class _Bound:
    """`rank`'s clock is ahead of `other`'s by least to most seconds; not sound where hosts do not wait."""

    group: str
    rank: int
    other: int
    least: float
    most: float


def _bounds(operations: MatchedOperations, calls: Mapping[int, Calls]) -> Iterable[_Bound]:
    """Of each member beside the first: nobody leaves before the other has come."""
    leaves = [calls[rank].next_at[operations.places[:, column]] for column, rank in enumerate(operations.members)]
    for column in range(1, len(operations.members)):
        most = float(np.min(leaves[column] - operations.at[:, 0]))
        least = -float(np.min(leaves[0] - operations.at[:, column]))
        yield _Bound(operations.group, operations.members[column], operations.members[0], least, most)


def _joined(ranks: Iterable[int], bounds: list[_Bound]) -> dict[int, float]:
    """Offsets that follow the narrowest bounds first."""
    part = {rank: {rank} for rank in ranks}
    ahead = dict.fromkeys(part, 0.0)
    for bound in sorted(bounds, key=lambda b: b.most - b.least):
        if part[bound.rank] is part[bound.other]:
            continue
        apart = 0.0 if bound.least <= 0 <= bound.most else (bound.least + bound.most) / 2
        shift = ahead[bound.other] + apart - ahead[bound.rank]
        for rank in part[bound.rank]:
            ahead[rank] += shift
        part[bound.other] |= part[bound.rank]
        for rank in part[bound.other]:
            part[rank] = part[bound.other]
    return ahead


def released(found: MatchedCalls, clocks: Clocks, leniency: int | None = None) -> dict[int, Floats]:
    """When the last other member had called each of a rank's operations, on the rank's clock; NaN: not known, -inf:
    nobody else takes part. leniency: a rank whose clock is as far ahead as it can be, which makes it least slow."""
    last = {
        rank: np.array([-np.inf if call.group in found.alone else np.nan for call in own.calls])
        for rank, own in found.calls.items()
    }
    for operations in found.operations:
        ahead = np.array([clocks.ahead[rank] for rank in operations.members])
        if leniency in operations.members:
            more = clocks.slack.get((operations.group, leniency), CLOCK_ERROR_SECONDS)
            ahead[operations.members.index(leniency)] += more if np.isfinite(more) else CLOCK_ERROR_SECONDS
        others = _last_other(operations.at - ahead) + ahead
        for column, rank in enumerate(operations.members):
            last[rank][operations.places[:, column]] = others[:, column]
    return last


def _last_other(at: Floats) -> Floats:
    """Of each row and column the largest of the other columns."""
    order = np.sort(at, axis=1)
    largest, second = order[:, -1:], order[:, -2:-1]
    first = np.argmax(at, axis=1)[:, None] == np.arange(at.shape[1])
    result: Any = np.where(first, second, largest)
    return np.asarray(result, np.float64)


def own_work(calls: Calls, last: Floats) -> Floats:
    """Seconds of its own work before each call; NaN where it is not known."""
    at = calls.at
    if len(at) < 2:
        return np.full(len(at), np.nan)
    before, now, let_go = at[:-1], at[1:], last[:-1]
    waited = (let_go > before) & (let_go <= now)
    work = now - np.where(waited, let_go, before)
    earlier = np.concatenate(([-np.inf], np.fmax.accumulate(last[:-1])[:-1]))
    disturbed = (earlier > before) & (earlier <= now) & ~(waited & (earlier <= let_go))
    unknown = np.isnan(let_go) | (waited & calls.sends[:-1]) | disturbed
    return np.concatenate(([np.nan], np.where(unknown, np.nan, work)))
