"""slow_link: a rank's messages and collectives take longer than they did though nobody is late; others' do not."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator

import numpy as np

from megatronapp.core.findings import Cause, Kind
from megatronapp.detector.rules.base import (
    Suspicion,
    View,
    confidence,
    evidence,
    patience,
)
from megatronapp.detector.rules.transfers import LINK_ENDS, Culprit, lost_seconds, replicas
from megatronapp.detector.signals.links import SENDS
from megatronapp.detector.signals.transfers import TransferKey

TOLD = 4
"""Of a link's transfers; the others are alike."""


def detect(view: View, culprits: Iterable[Culprit]) -> Iterator[Suspicion]:
    """culprits: the links that explain the step's slow transfers."""
    for culprit in culprits:
        yield _link(view, culprit)
    yield from _delays(view)


def _link(view: View, culprit: Culprit) -> Suspicion:
    monitor = view.monitors["transfer"]
    slow = sorted(culprit.transfers, key=lambda each: -each.effect)
    worst, keys = slow[0].item, [each.key for each in slow]
    ratio, since = math.exp(slow[0].effect), int(min(monitor.since[each.item] for each in slow))
    lost = lost_seconds(slow)
    messages_alone = all(len(key) == 3 for key in keys)
    doubt = "" if len(culprit.ranks) <= LINK_ENDS else "; which of their links it is can't be told"
    return Suspicion(
        kind=Kind.SLOW_LINK,
        cause=_cause(view, culprit.ends),
        ranks=culprit.ranks,
        since_step=since,
        effect_ratio=ratio,
        evidence=tuple(evidence(view, "transfer", each.item, f"shortest {_named(each.key)}") for each in slow[:TOLD]),
        summary=f"{_listed(keys)} take {ratio:.1f} times as long since step {since}, and others do not{doubt}.",
        advice="Check the network port, cable and switch of this link's ends.",
        confidence=confidence(monitor, worst, disputed=bool(doubt)),
        uncertainty=monitor.uncertainty(worst),
        slow_steps=monitor.slow_steps(worst),
        smallest=monitor.noise.smallest,
        lost_seconds=lost,
        page_steps=patience(view, since, small=culprit.more_may_tell),
        page_seconds=view.profile.patience.seconds,
        fading=monitor.fading(worst),
        cost_ratio=1 + lost / view.step_seconds,
        # A GPU's send ends when its receiver takes it, and a device that is slow reduces gradients slowly, too.
        involved=tuple(sorted(replicas(view, culprit.ends))) if messages_alone else culprit.ranks,
    )


def _named(key: TransferKey) -> str:
    if len(key) == 3:
        return f"{SENDS[key[2]].replace('_', ' ')} {key[0]} → {key[1]}"
    return f"{key[1]} of any member of {key[0]}"


def _listed(keys: list[TransferKey]) -> str:
    pairs = sorted({key[:2] for key in keys if len(key) == 3})
    groups = sorted({f"{key[1]} in {key[0]}" for key in keys if len(key) == 2})
    parts = ["messages " + ", ".join(f"{a} → {b}" for a, b in pairs)] if pairs else []
    text = "; ".join(parts + groups)
    return text[:1].upper() + text[1:]


DELAYS = {"sync_delay": "its gradients", "send_delay": "its messages"}


def _delays(view: View) -> Iterator[Suspicion]:
    """A rank that has what it sends, and sends it late all the same."""
    for signal, what in DELAYS.items():
        for rank in view.alarmed(signal):
            yield _delay(view, signal, rank, what)


def _among_the_latest(view: View, rank: int) -> bool:
    """Whether nobody of the rank's replica sends far later. Where a send ends when its receiver takes it, one to a rank
    that is itself late takes longer, too, and so on through the replica."""
    effect = view.monitors["send_delay"].effect
    late = replicas(view, (rank,)).intersection(view.alarmed("send_delay"))
    return float(effect[rank]) >= view.profile.shadow * max(float(effect[each]) for each in late)


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
        pages=signal != "send_delay" or _among_the_latest(view, rank),
        smallest=monitor.noise.smallest,
        lost_seconds=lost,
        page_steps=patience(view, since, wall_time=True),
        page_seconds=view.profile.patience.seconds,
        fading=monitor.fading(rank),
        cost_ratio=1 + share,
        involved=tuple(int(peer) for peer in np.unique(view.messages.peer[view.messages.sender == rank])),
    )


def _cause(view: View, ranks: Iterable[int]) -> Cause:
    """Between nodes it is the network card or what is behind it, within one NVLink; else nobody can tell."""
    if not view.profile.link_is_known:
        return Cause.UNKNOWN
    places = [place for rank in ranks if (place := view.rank_index(rank)) is not None]
    if len(places) < 2:
        return Cause.UNKNOWN
    return Cause.NVLINK if len(set(view.table.ranks.node[places])) == 1 else Cause.NIC
