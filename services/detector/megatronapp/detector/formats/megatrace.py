"""Megatrace's logs, one a rank (`rank_<r>.log`): each call of NCCL, by host clock, of a job that fell silent.

    [save_count 1] [1730000000.000001234] [Rank 3] Fun AllReduce Data 4096 stream 0x7f.. opCount 57 groupHash 83..

A line says that a rank has handed an operation over, not that its device has come to it. So an operation counts as
through when all members of its communicator have called it: what is told of a rank is how far its host has come. A
communicator is the calls of one `groupHash`, which older logs lack: then it is those of one stream, of each rank.

The log is a ring of 10,000 lines, of which the newest are kept. Operations that all members take part in are numbered
by `opCount`, so that what was overwritten does not matter. A message's line does not name the peer: messages are
compared, by counting them, in communicators of two, and only where nothing was overwritten.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import permutations
from pathlib import Path

from megatronapp.core.errors import DataError
from megatronapp.core.trace.limits import MAX_WORLD
from megatronapp.detector.formats import megatrace_streams
from megatronapp.detector.formats.layout import Traffic
from megatronapp.detector.formats.megatrace_log import RECV, SEND, Call, RankLog, rank_of, read_log
from megatronapp.detector.signals.frontier import Frontier, Position
from megatronapp.detector.signals.program import Called, Calls

MAX_AHEAD = 1024
"""Operations that a host can be ahead of its device: so many launches wait in a stream's queue before one blocks. Who
is farther behind than this has not stopped: its log is cut."""
_FILE = re.compile(r"(?:megatrace_\S+_)?rank_(\d+)\.log")


@dataclass(frozen=True, slots=True)
class Logs:
    """How far each rank has come (signals.frontier)."""

    ranks: Mapping[int, RankLog]
    frontiers: dict[int, Frontier]
    members: dict[str, tuple[int, ...]]
    cut: frozenset[int]
    """Ranks whose log ends before what they were in."""
    absent: frozenset[int]
    """Ranks without a log."""
    message_pairs: tuple[tuple[str, tuple[int, int]], ...]
    """Communicators of two that carry messages which can be matched, with sender and receiver."""
    messages_unmatched: bool
    """Some rank sends or receives messages whose peer is not known, and may wait for any of them."""
    stopped: frozenset[int] | None = None
    """Ranks that have stopped for sure, of logs whose communicators are not known (megatrace_streams); else None."""

    @property
    def calls(self) -> Calls:
        """Of communicators that are known."""
        found: defaultdict[str, dict[int, dict[int, Called]]] = defaultdict(dict)
        for rank, log in self.ranks.items() if self.stopped is None else ():
            for group, calls in log.calls.items():
                found[group][rank] = {call.number: Called(call.operation, call.count) for call in calls}
        return found

    @property
    def hangs(self) -> bool:
        """Whether a rank has called what another member has not."""
        return any(position.outstanding for frontier in self.frontiers.values() for position in frontier.values())

    @property
    def unclear(self) -> frozenset[int]:
        """Ranks of which it is not known what they wait for: of none if one has left no log, as it may be for that
        one. A communicator's members are those that have called it. Until each rank has called all of its own, in the
        first step, who has called more of them than another may wait for that one in one of these."""
        if self.absent:
            return frozenset(self.frontiers) | self.absent
        used = {rank: len(log.calls) for rank, log in self.ranks.items()}
        if any(log.overwritten for log in self.ranks.values()):
            return self.cut
        return self.cut.union(rank for rank, groups in used.items() if groups > min(used.values()))


def find_logs(folder: Path) -> dict[int, Path]:
    """The logs in a folder by rank; empty when it holds none. Raises DataError when two are of one rank."""
    found: dict[int, Path] = {}
    for path in sorted(folder.iterdir()):
        if path.suffix != ".log" or not path.is_file():
            continue
        named = _FILE.fullmatch(path.name)
        rank = int(named[1]) if named else rank_of(path)
        if rank is None:
            continue
        if rank in found:
            raise DataError(f"{path} and {found[rank].name} are both of rank {rank}; give a folder with one run's logs")
        found[rank] = path
    return found


def read(logs: Mapping[int, Path], world: int | None = None) -> Logs:
    """world: how many ranks there are; None: as many as the highest number of a log says. Raises DataError."""
    if max(logs) >= MAX_WORLD:
        raise DataError(f"{logs[max(logs)]} is of rank {max(logs)}; ranks count from 0 to {MAX_WORLD - 1}")
    ranks, stopped = _with_communicators({rank: read_log(rank, path) for rank, path in logs.items()})
    members = _members(ranks)
    frontiers: dict[int, Frontier] = {rank: {} for rank in ranks}
    for group, of in members.items():
        completed = min(ranks[rank].calls[group][-1].number for rank in of)
        for rank in of:
            frontiers[rank] = {**frontiers[rank], group: _position(ranks[rank].calls[group], completed)}
    pairs, matched, unmatched = _pairs(ranks)
    for pair, (sent, received) in pairs.items():
        for rank, called, operation in ((pair[0], sent, SEND), (pair[1], received, RECV)):
            through = min(sent, received)
            position = Position(called, min(called, through + 1), through, operation)
            frontiers[rank] = {**frontiers[rank], _pair_name(pair): position}
    return Logs(
        ranks=ranks,
        frontiers=frontiers,
        members=members | {_pair_name(pair): pair for pair in pairs},
        cut=frozenset(_cut(ranks, members)),
        absent=frozenset(range(world if world is not None else max(ranks) + 1)) - ranks.keys(),
        message_pairs=matched,
        messages_unmatched=unmatched,
        stopped=stopped,
    )


def _with_communicators(ranks: Mapping[int, RankLog]) -> tuple[Mapping[int, RankLog], frozenset[int] | None]:
    """Logs whose groups are communicators; and, where these are inferred from streams, who has stopped for sure."""
    if all(log.hashed for log in ranks.values()):
        return ranks, None
    if any(log.hashed for log in ranks.values()):
        raise DataError("some of these logs have groupHash, some not; give those of one version of Megatrace")
    if all(len({call.group for call in log.history}) == 1 for log in ranks.values()):
        return {rank: _of_one_communicator(log) for rank, log in ranks.items()}, None
    inferred = megatrace_streams.infer(ranks)
    return inferred.ranks, inferred.stopped


def _of_one_communicator(log: RankLog) -> RankLog:
    messages = {("all", kind): n for (_, kind), n in log.messages.items()}
    return replace(log, calls=dict(zip(("all",), log.calls.values(), strict=False)), messages=messages)


def _pair_name(pair: tuple[int, int]) -> str:
    return f"p2p:{pair[0]}-{pair[1]}"


Pair = tuple[int, int]
"""Sender and receiver."""


def _pairs(
    ranks: Mapping[int, RankLog],
) -> tuple[dict[Pair, tuple[int, int]], tuple[tuple[str, Pair], ...], bool]:
    """By sender and receiver how many messages each has called; the communicators of two that carry them; and whether
    there are others."""
    users = users_of(ranks)
    sent: Counter[Pair] = Counter()
    received: Counter[Pair] = Counter()
    matched: list[tuple[str, Pair]] = []
    unmatched = False
    for group in sorted({group for log in ranks.values() for group, _ in log.messages}):
        if len(users[group]) != 2 or any(ranks[rank].overwritten for rank in users[group]):
            unmatched = True
            continue
        for sender, receiver in permutations(users[group]):
            pair = (sender, receiver)
            sent[pair] += ranks[sender].messages.get((group, SEND), 0)
            received[pair] += ranks[receiver].messages.get((group, RECV), 0)
            matched.append((group, pair))
    counts = {pair: (sent[pair], received[pair]) for pair in {*sent, *received} if sent[pair] or received[pair]}
    return counts, tuple(matched), unmatched


def users_of(ranks: Mapping[int, RankLog]) -> dict[str, tuple[int, ...]]:
    """Who has called anything in each communicator, messages included."""
    users: defaultdict[str, list[int]] = defaultdict(list)
    for rank, log in sorted(ranks.items()):
        for group in {*log.calls, *(group for group, _ in log.messages)}:
            users[group].append(rank)
    return {group: tuple(of) for group, of in users.items()}


def traffic_of(logs: Logs) -> Traffic:
    """What tells how the job is laid out."""
    members = users_of(logs.ranks)
    calls = {group: max(len(logs.ranks[rank].calls.get(group, ())) for rank in of) for group, of in members.items()}
    return Traffic(members, calls, frozenset(group for log in logs.ranks.values() for group, _ in log.messages))


def _members(ranks: Mapping[int, RankLog]) -> dict[str, tuple[int, ...]]:
    members: defaultdict[str, list[int]] = defaultdict(list)
    for rank, log in sorted(ranks.items()):
        for group in log.calls:
            members[group].append(rank)
    return {group: tuple(of) for group, of in members.items()}


def _position(calls: tuple[Call, ...], completed: int) -> Position:
    """Of a rank's communicator, whose operations up to number `completed` all members have called."""
    enqueued = calls[-1].number
    waiting = [call for call in calls if call.number > completed]
    operation = waiting[0] if waiting else calls[-1]
    return Position(enqueued, min(enqueued, completed + 1), completed, operation.operation)


def _cut(ranks: Mapping[int, RankLog], members: Mapping[str, tuple[int, ...]]) -> Iterator[int]:
    """Ranks whose log was not written to its end, or that are farther behind than a host can be."""
    yield from (rank for rank, log in ranks.items() if log.cut)
    for group, of in members.items():
        newest = max(ranks[rank].calls[group][-1].number for rank in of)
        yield from (rank for rank in of if newest - ranks[rank].calls[group][-1].number > MAX_AHEAD)
