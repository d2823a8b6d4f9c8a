"""fabric_slow: the links of most ranks, or of several nodes, are slow together; what they share is."""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np

from megatronapp.core.findings import Cause, Kind
from megatronapp.detector.rules.base import Suspicion, View, confidence, evidence
from megatronapp.detector.rules.transfers import Located, lost_seconds
from megatronapp.detector.signals.transfers import operation_of


def detect(view: View, located: Located) -> Iterator[Suspicion]:
    if not located.fabric:
        return
    monitor, slow = view.monitors["transfer"], located.fabric
    worst = max(slow, key=lambda each: each.effect).item
    ratio, lost = math.exp(float(np.median([each.effect for each in slow]))), lost_seconds(slow)
    operations = ", ".join(sorted({operation_of(each.key) for each in slow}))
    share = len(located.suspects) / len(view.table.ranks)
    doubt = "" if located.told_apart else ", or those of a single rank: one group holds all of them"
    yield Suspicion(
        kind=Kind.FABRIC_SLOW,
        cause=Cause.NIC if view.profile.link_is_known and located.told_apart else Cause.UNKNOWN,
        ranks=(),
        since_step=int(np.median(monitor.since[[each.item for each in slow]])),
        effect_ratio=ratio,
        evidence=(evidence(view, "transfer", worst, f"{len(slow)} slow transfers, of {operations}"),),
        summary=f"The links of {share:.0%} of the ranks are slow{doubt}: {operations} take {ratio:.1f} times as long.",
        advice="Check the network as a whole: switches, routing, congestion by other jobs.",
        confidence=confidence(monitor, worst, disputed=not located.told_apart),
        uncertainty=monitor.uncertainty(worst),
        slow_steps=monitor.slow_steps(worst),
        smallest=monitor.noise.smallest,
        lost_seconds=lost,
        fading=monitor.fading(worst),
        cost_ratio=1 + lost / view.step_seconds,
        involved=() if located.told_apart else tuple(sorted(located.suspects)),
    )
