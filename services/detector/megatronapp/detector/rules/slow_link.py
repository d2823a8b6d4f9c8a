"""slow_link: messages of a rank, or collectives of a group, take longer than they did although nobody is late."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator

import numpy as np

from megatronapp.core.findings import Cause, Evidence, Kind
from megatronapp.detector.rules.base import CollectiveKey, MessageKey, Suspicion, View, confidence, evidence
from megatronapp.detector.signals.links import SENDS

MAJORITY = 0.5
"""More groups of one operation than this share slow together: the fabric, not a link."""


def detect(view: View) -> Iterator[Suspicion]:
    yield from _messages(view)
    yield from _collectives(view)


def _messages(view: View) -> Iterator[Suspicion]:
    """Late messages, put down to the end that they share."""
    late = {key: item for key, item in _alarmed(view) if len(key) == 3}
    by_sender: dict[int, list[tuple[MessageKey, int]]] = defaultdict(list)
    by_receiver: dict[int, list[tuple[MessageKey, int]]] = defaultdict(list)
    for key, item in late.items():
        by_sender[key[0]].append((key, item))
        by_receiver[key[1]].append((key, item))
    for receiver, links in by_receiver.items():
        if len({key[0] for key, _ in links}) > 1:
            yield _of_links(view, receiver, links)
            for key, _ in links:
                by_sender.pop(key[0], None)
    for sender, links in by_sender.items():
        yield _of_links(view, sender, links)


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
        smallest=monitor.noise.smallest,
        lost_seconds=lost,
        cost_ratio=1 + lost / view.step_seconds,
    )


def _collectives(view: View) -> Iterator[Suspicion]:
    """Groups whose transfer is slow while other groups of the same operation are not; ranks that all of them share."""
    slow: dict[str, list[tuple[CollectiveKey, int]]] = defaultdict(list)
    for key, item in _alarmed(view):
        if len(key) == 2:
            slow[key[1]].append((key, item))
    for operation, groups in slow.items():
        watched = {key[0] for key in view.transfers if len(key) == 2 and key[1] == operation}
        if len(watched) > 1 and len(groups) <= MAJORITY * len(watched):
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
        confidence=confidence(monitor, item, agreeing=bool(shared)),
        uncertainty=monitor.uncertainty(item),
        smallest=monitor.noise.smallest,
        lost_seconds=lost,
        pages=not view.on_cpu(),
        cost_ratio=1 + lost / view.step_seconds,
    )


def _alarmed(view: View) -> list[tuple[MessageKey | CollectiveKey, int]]:
    alarmed = set(view.alarmed("transfer"))
    return [(key, item) for key, item in view.transfers.items() if item in alarmed]


def _lost(seconds: np.ndarray, count: np.ndarray, index: int | None, ratio: float) -> float:
    return float(seconds[index] * (1 - 1 / ratio) * count[index]) if index is not None else 0.0


def _cause(view: View, ranks: tuple[int, ...]) -> Cause:
    """Between nodes it is the network card or what is behind it, within one NVLink; sockets tell neither."""
    if view.on_cpu():
        return Cause.UNKNOWN
    places = [place for rank in ranks if (place := view.rank_index(rank)) is not None]
    return Cause.NVLINK if len(set(view.table.ranks.node[places])) == 1 else Cause.NIC
