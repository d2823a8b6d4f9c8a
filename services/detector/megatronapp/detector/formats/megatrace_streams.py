"""Megatrace's logs without `groupHash`: which calls may belong together, by the streams that they were called on.

PyTorch gives each communicator of a rank a stream of its own, so a rank's stream is one communicator. Which ranks share
it is not in the logs. Members call the same operations of the same size under the same `opCount`: so whose streams
differ do not share one, and those that are alike may or may not (all tensor groups are alike). That is enough to name a
rank in one case: it is behind all others that are alike, so whoever its members are, they have called what it has not,
and it is ahead of nobody, so it waits for none of them. Everything else stays open, and so does who is slow.

A communicator of one rank never advances opCount; what it called keeps nobody waiting.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

from megatronapp.detector.formats.megatrace_log import MESSAGES, RankLog


@dataclass(frozen=True, slots=True)
class Inferred:
    ranks: Mapping[int, RankLog]
    """With communicators that hold all whose streams are alike."""
    stopped: frozenset[int]
    """Ranks that have stopped, whoever the members of their communicators are."""


@dataclass(frozen=True, slots=True)
class _Course:
    """What some streams called, all of them the same: operation and elements by number."""

    calls: Mapping[int, tuple[str, int]]
    streams: list[tuple[int, str]]
    """A rank and its stream, in order."""

    @property
    def newest(self) -> int:
        return max(self.calls)

    def of_others(self, rank: int) -> bool:
        return any(other != rank for other, _ in self.streams)

    def may_be_of(self, other: _Course) -> bool:
        """Whether their streams may be of one communicator."""
        common = self.calls.keys() & other.calls.keys()
        return bool(common) and len(common) == len(self.calls.items() & other.calls.items())


def infer(ranks: Mapping[int, RankLog]) -> Inferred:
    """Of logs whose `groups` are streams."""
    courses: dict[tuple[tuple[int, tuple[str, int]], ...], _Course] = {}
    mixed = False
    for rank, log in sorted(ranks.items()):
        for stream, calls in log.calls.items():
            numbers = [call.number for call in log.history if call.group == stream and call.operation not in MESSAGES]
            if len(calls) == 1 < len(numbers):
                continue  # of one rank
            mixed |= any(after < before for before, after in pairwise(numbers))
            key = tuple((call.number, (call.operation, call.count)) for call in calls)
            courses.setdefault(key, _Course(dict(key), [])).streams.append((rank, stream))
    alike = _alike(tuple(courses.values()))
    names = _names(alike)
    # A stream that several communicators share, whose numbers go back, may be the one that somebody waits in.
    stopped = frozenset[int]() if mixed else frozenset(rank for rank in ranks if _stopped(rank, alike))
    return Inferred({rank: _renamed(rank, log, names) for rank, log in ranks.items()}, stopped)


Alike = Sequence[tuple[_Course, Sequence[_Course]]]
"""Each course with all that may be of the same communicators, itself among them."""


def _alike(courses: Sequence[_Course]) -> Alike:
    return [(one, [other for other in courses if other is one or one.may_be_of(other)]) for one in courses]


def _stopped(rank: int, alike: Alike) -> bool:
    """Whether it is behind all others somewhere, and ahead of nobody anywhere."""
    behind = False
    for own, possible in alike:
        if all(of != rank for of, _ in own.streams):
            continue
        newest = [other.newest for other in possible if other.of_others(rank)]
        if any(number < own.newest for number in newest):
            return False
        # One call alone may be of a communicator of one rank.
        behind |= bool(newest) and len(own.calls) > 1 and all(number > own.newest for number in newest)
    return behind


def _names(alike: Alike) -> dict[tuple[int, str], str]:
    """Streams that may be of one communicator, also by way of others, have one name."""
    names: dict[tuple[int, str], str] = {}
    possible = {id(course): others for course, others in alike}
    for course, _ in alike:
        rank, stream = course.streams[0]
        todo = [course]
        while todo:
            each = todo.pop()
            if each.streams[0] not in names:
                names.update(dict.fromkeys(each.streams, f"stream {stream} of rank {rank}"))
                todo += possible[id(each)]
    return names


def _renamed(rank: int, log: RankLog, names: Mapping[tuple[int, str], str]) -> RankLog:
    calls = {names[rank, stream]: calls for stream, calls in log.calls.items() if (rank, stream) in names}
    messages = {(f"messages of rank {rank}, {stream}", kind): n for (stream, kind), n in log.messages.items()}
    return replace(log, calls=calls, messages=messages)
