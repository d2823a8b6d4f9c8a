"""slow_link: messages of a rank, or collectives of a group, take longer than they did although nobody is late."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator

import numpy as np

from megatronapp.core.findings import Cause, Evidence, Kind
from megatronapp.detector.rules.base import (
    Suspicion,
    View,
    confidence,
    evidence,
    patience,
)
from megatronapp.detector.signals.links import SENDS
from megatronapp.detector.signals.transfers import CollectiveKey, MessageKey, TransferKey

MAJORITY = 0.5
"""More groups of one operation than this share slow together: the fabric, not a link."""


def detect(view: View) -> Iterator[Suspicion]:
    yield from _messages(view)
    yield from _delays(view)
    yield from _collectives(view)


def _messages(view: View) -> Iterator[Suspicion]:
    """Late messages, put down to their sender; to the receiver if all its links are late, in and out."""
    late = [(key, item) for key, item in _alarmed(view) if len(key) == 3]
    sends: dict[int, list[tuple[MessageKey, int]]] = defaultdict(list)
    receives: dict[int, list[tuple[MessageKey, int]]] = defaultdict(list)
    for key, item in late:
        sends[key[0]].append((key, item))
        receives[key[1]].append((key, item))
    for rank, links in receives.items():
        if rank in sends and len({key[0] for key, _ in links}) > 1:
            for key, _ in links:
                sends.pop(key[0], None)
            sends[rank] += links
    for rank, links in sends.items():
        yield _of_links(view, rank, links)


def _of_links(view: View, rank: int, links: list[tuple[MessageKey, int]]) -> Suspicion:
    monitor = view.monitors["transfer"]
    key, item = max(links, key=lambda link: float(monitor.effect[link[1]]))
    ratio, since = float(np.exp(monitor.effect[item])), int(min(monitor.since[i] for _, i in links))
    pairs = ", ".join(f"{a} → {b}" for a, b in sorted({(k[0], k[1]) for k, _ in links}))
    index = dict(zip(view.messages.keys(), range(len(view.messages.count)), strict=True)).get(key)
    lost = _lost(view.messages.seconds, view.messages.count, index, ratio)
    return Suspicion(
        kind=Kind.SLOW_LINK,
        cause=_cause(view, (rank, key[1] if rank == key[0] else key[0])),
        ranks=(rank,),
        since_step=since,
        effect_ratio=ratio,
        evidence=tuple(
            evidence(view, "transfer", i, f"shortest {SENDS[k[2]].replace('_', ' ')} {k[0]} → {k[1]}") for k, i in links
        ),
        summary=f"Messages {pairs} take {ratio:.1f} times as long since step {since}.",
        advice="Check the network port, cable and switch of the sending rank's node.",
        confidence=confidence(monitor, item),
        uncertainty=monitor.uncertainty(item),
        slow_steps=monitor.slow_steps(item),
        smallest=monitor.noise.smallest,
        lost_seconds=lost,
        page_steps=patience(view, since),
        page_seconds=view.profile.patience.seconds,
        fading=monitor.fading(item),
        cost_ratio=1 + lost / view.step_seconds,
        involved=_neighbours(view, {end for k, _ in links for end in k[:2]}),
    )


def _neighbours(view: View, ends: set[int]) -> tuple[int, ...]:
    """Ranks whose slowness would make these links look slow: a GPU's send ends when its receiver takes it, and each
    stage of a replica waits for the others."""
    ranks = view.table.ranks
    replicas = ranks.data[np.isin(ranks.rank, sorted(ends))]
    return tuple(int(rank) for rank in ranks.rank[np.isin(ranks.data, replicas)])


DELAYS = {"sync_delay": "its gradients", "send_delay": "its messages"}


def _delays(view: View) -> Iterator[Suspicion]:
    """A rank that has what it sends, and sends it late all the same."""
    for signal, what in DELAYS.items():
        for rank in view.alarmed(signal):
            yield _delay(view, signal, rank, what)


def _delay(view: View, signal: str, rank: int, what: str) -> Suspicion:
    monitor = view.monitors[signal]
    share, since = max(float(monitor.effect[rank]), 0.0), int(monitor.since[rank])
    lost = share * view.step_seconds
    return Suspicion(
        kind=Kind.SLOW_LINK,
        cause=_cause(view, (rank,)),
        ranks=(rank,),
        since_step=since,
        effect_ratio=1 + share,
        evidence=(evidence(view, signal, rank, f"delay before {what} are sent, of a step", logarithmic=False),),
        summary=f"Rank {rank} sends {what} {lost:.3f} s per step late since step {since}, though they are ready.",
        advice="Check the network port, cable and switch of this rank's node.",
        confidence=confidence(monitor, rank),
        uncertainty=monitor.uncertainty(rank),
        slow_steps=monitor.slow_steps(rank),
        smallest=monitor.noise.smallest,
        lost_seconds=lost,
        page_steps=patience(view, since, wall_time=True),
        page_seconds=view.profile.patience.seconds,
        fading=monitor.fading(rank),
        cost_ratio=1 + share,
        involved=tuple(int(peer) for peer in np.unique(view.messages.peer[view.messages.sender == rank])),
    )


def _collectives(view: View) -> Iterator[Suspicion]:
    """Groups whose transfer is slow while other groups of the same operation are not; ranks that all of them share."""
    slow: dict[str, list[tuple[CollectiveKey, int]]] = defaultdict(list)
    for key, item in _alarmed(view):
        if len(key) == 2:
            slow[key[1]].append((key, item))
    for operation, groups in slow.items():
        watched = len(view.transfers.families[operation])
        if watched > 1 and len(groups) <= MAJORITY * watched:
            yield _of_groups(view, operation, groups)


def _of_groups(view: View, operation: str, groups: list[tuple[CollectiveKey, int]]) -> Suspicion:
    monitor = view.monitors["transfer"]
    members = {group.id: group.ranks for group in view.table.communicators}
    known = [set(members[key[0]]) for key, _ in groups if key[0] in members]
    shared = set.intersection(*known) if known else set()
    ranks = tuple(sorted(shared or set().union(*known)))
    item = max((i for _, i in groups), key=lambda i: float(monitor.effect[i]))
    ratio, since = float(np.exp(monitor.effect[item])), int(monitor.since[item])
    places = [
        i
        for i, (g, o) in enumerate(zip(view.collectives.group, view.collectives.operation, strict=True))
        if (view.table.communicators[g].id, view.table.operations[o]) in {key for key, _ in groups}
    ]
    lost = max((_lost(view.collectives.seconds, view.collectives.count, i, ratio) for i in places), default=0.0)
    names = ", ".join(key[0] for key, _ in groups)
    shown: tuple[Evidence, ...] = tuple(
        evidence(view, "transfer", i, f"shortest {k[1]} of any member of {k[0]}") for k, i in groups[:4]
    )
    return Suspicion(
        kind=Kind.SLOW_LINK,
        cause=_cause(view, ranks),
        ranks=ranks,
        since_step=since,
        effect_ratio=ratio,
        evidence=shown,
        summary=f"{operation} in {names} takes {ratio:.1f} times as long since step {since}; other groups do not.",
        advice="Check the links that these ranks share.",
        confidence=confidence(monitor, item, disputed=not shared),
        uncertainty=monitor.uncertainty(item),
        slow_steps=monitor.slow_steps(item),
        smallest=monitor.noise.smallest,
        lost_seconds=lost,
        pages=view.profile.wall_time_tells,
        cost_ratio=1 + lost / view.step_seconds,
    )


def _alarmed(view: View) -> list[tuple[TransferKey, int]]:
    return [(view.transfers.keys[item], item) for item in view.alarmed("transfer")]


def _lost(seconds: np.ndarray, count: np.ndarray, index: int | None, ratio: float) -> float:
    return float(seconds[index] * (1 - 1 / ratio) * count[index]) if index is not None else 0.0


def _cause(view: View, ranks: tuple[int, ...]) -> Cause:
    """Between nodes it is the network card or what is behind it, within one NVLink; else nobody can tell."""
    if not view.profile.link_is_known:
        return Cause.UNKNOWN
    places = [place for rank in ranks if (place := view.rank_index(rank)) is not None]
    if len(places) < 2:
        return Cause.UNKNOWN
    return Cause.NVLINK if len(set(view.table.ranks.node[places])) == 1 else Cause.NIC
