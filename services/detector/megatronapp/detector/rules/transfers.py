"""Where slow transfers come from: links that explain them, or the fabric that most links share."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from megatronapp.detector.rules.base import OWN_REASONS, View
from megatronapp.detector.signals.tomography import Cleared, Path, culprits
from megatronapp.detector.signals.transfers import TransferKey, operation_of
from megatronapp.detector.statistics import scale

SHOWN = 0.5
"""A transfer is as slow as another that shows this share of its effect; one that shows less is good beside it."""
MAJORITY = 0.5
"""The links of more ranks than this share: the fabric."""
SEVERAL = 3
"""Nodes whose links become slow together do so for what they share."""
LINK_ENDS = 2


@dataclass(frozen=True, slots=True)
class Slow:
    """A transfer under alarm."""

    item: int
    """Its number."""
    key: TransferKey
    path: Path
    effect: float
    lost_seconds: float
    """In a step: by its shortest, as often as it came."""


@dataclass(frozen=True, slots=True)
class Culprit:
    """A link, and the transfers that it makes slow, those that lose most first."""

    ranks: tuple[int, ...]
    """Whose it is; several where nothing tells them apart."""
    transfers: tuple[Slow, ...]
    more_may_tell: bool = False
    """Further steps may tell them apart."""

    @property
    def ends(self) -> frozenset[int]:
        return frozenset[int]().union(*(each.path.ends for each in self.transfers))


@dataclass(frozen=True, slots=True)
class Located:
    culprits: tuple[Culprit, ...] = ()
    fabric: tuple[Slow, ...] = ()
    """All transfers under alarm, where it is the fabric; there are no other culprits then."""
    suspects: frozenset[int] = frozenset()
    """Of the fabric: ranks whose links explain what is slow."""
    told_apart: bool = True
    """Several links are slow, not perhaps a single one of a group that holds most ranks."""


def locate(view: View) -> Located:
    """The links that explain the slow transfers, that which loses most first: what is its doing is no other's fault."""
    if not view.alarmed("transfer"):
        return Located()
    everything = sorted(_under_alarm(view), key=lambda each: -each.lost_seconds)
    left, found, slow_links = everything, list[Culprit](), list[frozenset[int]]()
    while left:
        slow, good = _beside(view, left[0])
        cleared = Cleared.by(good)
        possible = _narrowed(view, left[0], culprits(left[0].path, slow, cleared))
        ranks = _waited_for(view, left[0], possible)
        explained = tuple(each for each in left if ranks & each.path.ends)
        found.append(Culprit(tuple(sorted(ranks)), explained, view.exposure.may_tell(ranks)))
        slow_links.append(possible)
        if _is_fabric(view, slow_links):
            return Located((), tuple(everything), suspected(slow_links, slow, cleared), len(found) > 1)
        waiting = replicas(view, found[-1].ends)
        left = [each for each in left if not ranks & each.path.ends and not _waits(each, found[-1], waiting, cleared)]
    return Located(tuple(found))


def replicas(view: View, ends: Iterable[int]) -> frozenset[int]:
    """All ranks of the ends' replicas. The stages of a replica wait for each other in every microbatch: what delays one
    of them makes the messages of all of them late."""
    ranks = view.table.ranks
    touched = ranks.data[np.isin(ranks.rank, sorted(ends))]
    return frozenset(ranks.rank[np.isin(ranks.data, touched)].tolist())


def suspected(links: Iterable[frozenset[int]], slow: Iterable[Path], cleared: Cleared) -> frozenset[int]:
    """Ranks whose links explain slow transfers, and those that no good transfer clears. Where both ends of one are
    cleared, what lies between them is slow."""
    return frozenset[int]().union(*links, *(cleared.suspects(path) for path in slow))


def lost_seconds(transfers: Iterable[Slow]) -> float:
    """What slow transfers take longer in a step: of each operation what loses most, as groups run side by side."""
    lost = defaultdict[str, float](float)
    for each in transfers:
        operation = operation_of(each.key)
        lost[operation] = max(lost[operation], each.lost_seconds)
    return sum(lost.values())


def _waits(slow: Slow, culprit: Culprit, waiting: frozenset[int], cleared: Cleared) -> bool:
    """Whether a message is late for the sake of a slow link: its ends depend on that, and are innocent, or it is much
    less late than what goes over the link."""
    weaker = slow.effect < SHOWN * max(each.effect for each in culprit.transfers)
    return len(slow.key) == 3 and slow.path.ends <= waiting and (weaker or not cleared.suspects(slow.path))


def _is_fabric(view: View, links: Sequence[frozenset[int]]) -> bool:
    """links: whose they may be, by the transfers alone."""
    ranks = frozenset[int]().union(*links)
    nodes = {node for each in links for node in _nodes(view, sorted(each)[:1])}
    return len(nodes) >= SEVERAL or len(ranks) > max(LINK_ENDS, MAJORITY * len(view.table.ranks))


def _nodes(view: View, ranks: Iterable[int]) -> set[str]:
    places = [place for rank in ranks if (place := view.rank_index(rank)) is not None]
    return set(view.table.ranks.node[places].tolist())


def _under_alarm(view: View) -> Iterator[Slow]:
    monitor, took, paths = view.monitors["transfer"], _took(view), _paths(view)
    for item in view.alarmed("transfer"):
        key, effect = view.transfers.keys[item], float(monitor.effect[item])
        if (path := paths(key)) is not None:
            yield Slow(item, key, path, effect, took.get(key, 0.0) * (1 - float(np.exp(-effect))))


def _beside(view: View, seed: Slow) -> tuple[list[Path], list[Path]]:
    """(slow, good) transfers. An operation of which nothing is under alarm takes another way, or carries too little to
    show it: it clears nobody."""
    monitor, slow, good = view.monitors["transfer"], list[Path](), list[Path]()
    for items in view.transfers.families.values():
        if (monitor.alarmed[items] & (monitor.effect[items] >= SHOWN * seed.effect)).any():
            for path, shows in _showing(view, seed, items):
                (slow if shows else good).append(path)
    return slow, good


def _narrowed(view: View, seed: Slow, alike: frozenset[int]) -> frozenset[int]:
    """Of several whose link it may be, those whose transfers of another operation all show it, too: one that varies
    more reaches its alarm later."""
    showing = frozenset[int]()
    for items in view.transfers.families.values() if len(alike) > 1 else ():
        if not view.monitors["transfer"].alarmed[items].any():
            seen = list(_showing(view, seed, items))
            shown, hidden = (
                {rank for path, shows in seen if shows is side for rank in path.ends} for side in (True, False)
            )
            showing |= alike & (shown - hidden)
    return showing or alike


def _waited_for(view: View, seed: Slow, alike: frozenset[int]) -> frozenset[int]:
    """Of several whose link it may be, those whose messages are waited for, and who are not late for another reason."""
    late = replicas(view, (rank for signal in OWN_REASONS for rank in view.alarmed(signal)))
    return view.exposure.standing_out(alike, int(view.monitors["transfer"].since[seed.item])) - late or alike


def _showing(view: View, seed: Slow, items: Sequence[int]) -> Iterator[tuple[Path, bool]]:
    """The transfers that were measured since the seed's alarm, and whether they show at least SHOWN of its effect: some
    do so a step before their own alarm."""
    monitor, paths = view.monitors["transfer"], _paths(view)
    steps = max(1, sum(1 for step in monitor.series(seed.item).steps if step >= monitor.since[seed.item]))
    recent = scale.location(np.stack([monitor.excess(item)[:steps] for item in items]))
    shown = np.where(monitor.alarmed[items], monitor.effect[items], recent)
    for item, value in zip(items, shown.tolist(), strict=True):
        path = paths(view.transfers.keys[item])
        if path is not None and math.isfinite(value):
            yield path, value >= SHOWN * seed.effect


def _paths(view: View) -> Callable[[TransferKey], Path | None]:
    """None for a group that is not known in this step."""
    members = {group.id: frozenset(group.ranks) for group in view.table.communicators}

    def path(key: TransferKey) -> Path | None:
        if len(key) == 3:
            return Path(frozenset(key[:1]), frozenset(key[1:2]))
        return Path(members[key[0]], members[key[0]]) if key[0] in members else None

    return path


def _took(view: View) -> dict[TransferKey, float]:
    """Seconds of each transfer in this step: its shortest, as often as it came."""
    messages, collectives, table = view.messages, view.collectives, view.table
    took: dict[TransferKey, float] = dict(
        zip(messages.keys(), (messages.seconds * messages.count).tolist(), strict=True)
    )
    seconds = (collectives.seconds * collectives.count).tolist()
    for group, name, spent in zip(collectives.group, collectives.operation, seconds, strict=True):
        took[table.communicators[group].id, table.operations[name]] = spent
    return took
