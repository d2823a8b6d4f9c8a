"""slow_link: whose sends NCCL's proxies wait for: of a network card, of the cards of a node, or of a link alone."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from megatronapp.detector.nccl_watch import SEND_BESIDE, NcclView
from megatronapp.detector.rules.transfers import SHOWN
from megatronapp.detector.signals.destinations import Peer
from megatronapp.detector.signals.tomography import Cleared, Path, culprits

CARDS = 3
"""Of one node that are slow together: it is the node. Of fewer, if they are two at least, half of those that send."""
NAMED = 3
"""Pairs of ranks that a text names."""
Alarm = tuple[str, int]
"""Signal and rank."""


@dataclass(frozen=True, slots=True)
class SlowSends:
    alarm: Alarm
    """The one that shows most."""
    ranks: tuple[int, ...]
    """Whose card or link it is."""
    senders: tuple[int, ...]
    what: str
    """As "What rank 3 sends to rank 5"."""


@dataclass(frozen=True, slots=True)
class _Sender:
    alarm: Alarm
    effect: float
    excess: Mapping[Peer, float]
    """By who gets it."""

    @property
    def slow(self) -> frozenset[Peer]:
        """To whom it sends slowly."""
        return frozenset(peer for peer, excess in self.excess.items() if excess >= SHOWN * self.effect)

    @property
    def of_links(self) -> bool:
        """Whether it is slow to some, and others get theirs as fast as ever."""
        return None not in self.slow and 0 < len(self.slow) < len(self.excess)


def located(
    nccl: NcclView, alarms: Mapping[Alarm, float], since: Callable[[Alarm], int], node_of: Callable[[int], str]
) -> Iterator[SlowSends]:
    """alarms: with their effect, one a rank. since: the step from which on an alarm's rank has been slow."""
    senders = {
        alarm[1]: _Sender(alarm, effect, nccl.destinations.excess(alarm[1], since(alarm)))
        for alarm, effect in alarms.items()
    }
    cards = {rank: sender for rank, sender in senders.items() if not sender.of_links}
    for node, ranks in _by_node(cards, node_of).items():
        several = len(ranks) >= CARDS or 1 < len(ranks) >= sum(node_of(rank) == node for rank in nccl.waits) / 2
        if several and node:
            yield SlowSends(
                _worst(senders, ranks), ranks, ranks, f"What {_ranks_named(ranks)} of node {node} send over the network"
            )
        else:
            for rank in ranks:
                what = _of_card(rank, cards[rank], nccl.ports.get(rank))
                yield SlowSends(senders[rank].alarm, (rank,), (rank,), what)
    yield from _links(nccl, senders)


def ratio_text(alarm: Alarm, ratio: float, since: int) -> str:
    what = "as its peers' do" if alarm[0] == SEND_BESIDE else "as before"
    return f"takes {ratio:.1f} times as long {what}, since step {since}"


def _links(nccl: NcclView, senders: Mapping[int, _Sender]) -> Iterator[SlowSends]:
    """Of sends that are slow to some alone: both ends of the link, or the one whose link explains several of them."""
    slow = {(rank, peer) for rank, each in senders.items() if each.of_links for peer in each.slow if peer is not None}
    if not slow:
        return
    whole = {rank for rank, each in senders.items() if not each.of_links}
    good = [_path(pair) for pair in nccl.destinations.pairs() if pair not in slow and pair[0] not in whole]
    cleared, paths = Cleared.by(good), [_path(pair) for pair in sorted(slow)]
    blamed = defaultdict[frozenset[int], list[tuple[int, int]]](list)
    for pair in sorted(slow):
        blamed[culprits(_path(pair), paths, cleared)].append(pair)
    for ranks, pairs in blamed.items():
        own = tuple(sorted({sender for sender, _ in pairs}))
        yield SlowSends(_worst(senders, own), tuple(sorted(ranks)), own, f"What {_pairs_named(pairs)}")


def _path(pair: tuple[int, int]) -> Path:
    return Path(frozenset(pair[:1]), frozenset(pair[1:]))


def _by_node(ranks: Iterable[int], node_of: Callable[[int], str]) -> dict[str, tuple[int, ...]]:
    found = defaultdict[str, tuple[int, ...]](tuple)
    for rank in sorted(ranks):
        found[node_of(rank)] += (rank,)
    return found


def _worst(senders: Mapping[int, _Sender], ranks: Iterable[int]) -> Alarm:
    return max((senders[rank] for rank in ranks), key=lambda each: each.effect).alarm


def _of_card(rank: int, sender: _Sender, port: str | None) -> str:
    """port: the slowest, where ports tell; proxies tell to whom instead."""
    only = next(iter(sender.excess)) if len(sender.excess) == 1 else None
    to = f", all of it to rank {only}," if only is not None else ""
    return f"What rank {rank} sends {f'through {port}' if port else 'over the network'}{to}"


def _ranks_named(ranks: Sequence[int]) -> str:
    return f"ranks {', '.join(map(str, ranks[:-1]))} and {ranks[-1]}"


def _pairs_named(pairs: Sequence[tuple[int, int]]) -> str:
    first, *others = (
        f"rank {sender} {verb} rank {receiver}" for (sender, receiver), verb in zip(pairs, _VERBS, strict=False)
    )
    more = f", and {len(pairs) - NAMED} more," if len(pairs) > NAMED else ""
    return " and ".join([first, *others]) + more


_VERBS = ("sends to", *("to" for _ in range(NAMED - 1)))
