"""Whom each rank sends to, and what its sends there wait for: a network card is slow to everybody, a link to one."""

from __future__ import annotations

import math
from collections import defaultdict, deque
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from megatronapp.detector.signals.nccl import Joined
from megatronapp.detector.signals.nccl_operations import Sent
from megatronapp.v1 import trace_pb2

NS = 1e-9
RECENT = 16
"""Steps that are kept by themselves; older ones are added up."""
KEPT = 1 - 1 / 64
"""Of what was added up, in each step."""
MOST_PAIRS = 1 << 16
"""Of ranks; later ones are left out."""
Peer = int | None
"""A global rank; None: what collectives send, whose members NCCL does not name."""


class _Step(NamedTuple):
    step: int
    seconds: float
    sent_bytes: int


@dataclass(slots=True)
class _Pair:
    recent: deque[_Step] = field(default_factory=deque)
    seconds: float = 0.0
    sent_bytes: float = 0.0
    """Of older steps, in which the rank was not slow."""

    def note(self, each: _Step, slow_since: int | None) -> None:
        self.recent.append(each)
        if len(self.recent) > RECENT:
            step, seconds, sent_bytes = self.recent.popleft()
            if slow_since is None or step < slow_since:
                self.seconds = KEPT * self.seconds + seconds
                self.sent_bytes = KEPT * self.sent_bytes + sent_bytes

    def excess(self, since_step: int) -> float | None:
        before, after = [self.seconds, self.sent_bytes], [0.0, 0.0]
        for each in self.recent:
            sums = after if each.step >= since_step else before
            sums[0] += each.seconds
            sums[1] += each.sent_bytes
        return math.log(after[0] / after[1] / (before[0] / before[1])) if after[1] and before[1] else None


class Destinations:
    def __init__(self) -> None:
        self._of: dict[int, dict[Peer, _Pair]] = {}
        self._pairs = 0

    def note(self, step: int, sent: Sent, known: Mapping[int, Joined], slow_since: Mapping[int, int]) -> None:
        """slow_since: of the ranks whose sends are slow now, from which step on."""
        for rank, tallies in sent:
            for peer, (nanoseconds, sent_bytes) in _sums(tallies, known).items():
                if (pair := self._pair(rank, peer)) is not None:
                    pair.note(_Step(step, nanoseconds * NS, sent_bytes), slow_since.get(rank))

    def excess(self, rank: int, since_step: int) -> dict[Peer, float]:
        """Log of how many times as long as before a byte has taken since a step, by who gets it; of those alone to
        whom the rank sent before and after."""
        of_peer = {peer: pair.excess(since_step) for peer, pair in self._of.get(rank, {}).items()}
        return {peer: excess for peer, excess in of_peer.items() if excess is not None}

    def pairs(self) -> Iterator[tuple[int, int]]:
        """Sender and receiver of all that is sent from rank to rank."""
        return ((rank, peer) for rank, peers in self._of.items() for peer in peers if peer is not None)

    def _pair(self, rank: int, peer: Peer) -> _Pair | None:
        own = self._of.setdefault(rank, {})
        if peer not in own and self._pairs < MOST_PAIRS:
            own[peer] = _Pair()
            self._pairs += 1
        return own.get(peer)


def _sums(tallies: Iterable[trace_pb2.NcclTally], known: Mapping[int, Joined]) -> dict[Peer, tuple[int, int]]:
    """Nanoseconds and bytes."""
    found: defaultdict[Peer, tuple[int, int]] = defaultdict(lambda: (0, 0))
    for tally in tallies:
        if tally.network_ns and tally.sent_bytes:
            peer = _peer(tally.seat, known)
            nanoseconds, sent_bytes = found[peer]
            found[peer] = nanoseconds + tally.network_ns, sent_bytes + tally.sent_bytes
    return found


def _peer(seat: trace_pb2.NcclSeat, known: Mapping[int, Joined]) -> Peer:
    communicator = known.get(seat.hash)
    there = communicator is not None and seat.HasField("peer") and seat.peer < len(communicator.ranks)
    return communicator.ranks[seat.peer] if communicator is not None and there else None
