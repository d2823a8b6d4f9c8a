"""fabric_slow: all groups of one operation slow together, and no member makes the others wait."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from megatronapp.core.findings import Cause, Kind
from megatronapp.detector.rules.base import Suspicion, View, confidence, evidence
from megatronapp.detector.rules.slow_link import MAJORITY

SEVERAL = 3
"""Groups (or pairs) that must be watched before "all" means something."""


def detect(view: View) -> Iterator[Suspicion]:
    if "transfer" not in view.monitors:
        return
    monitor = view.monitors["transfer"]
    for operation, items in view.transfers.families.items():
        slow = np.array(items)[monitor.alarmed[items]]
        if len(items) < SEVERAL or len(slow) <= MAJORITY * len(items):
            continue
        worst = int(slow[np.argmax(monitor.effect[slow])])
        ratio = float(np.exp(np.median(monitor.effect[slow])))
        communicating = float(np.nanmedian(view.accounts.communication))
        yield Suspicion(
            kind=Kind.FABRIC_SLOW,
            cause=Cause.NIC if view.profile.link_is_known else Cause.UNKNOWN,
            ranks=(),
            since_step=int(np.median(monitor.since[slow])),
            effect_ratio=ratio,
            evidence=(evidence(view, "transfer", worst, f"{operation}: {len(slow)} of {len(items)} are slow"),),
            summary=f"{operation}: {len(slow)} of {len(items)} groups take {ratio:.1f} times as long.",
            advice="Check the network as a whole: switches, routing, congestion by other jobs.",
            confidence=confidence(monitor, worst),
            uncertainty=monitor.uncertainty(worst),
            slow_steps=monitor.slow_steps(worst),
            smallest=monitor.noise.smallest,
            pages=view.profile.wall_time_tells,
            cost_ratio=1 + communicating * (1 - 1 / ratio) / view.step_seconds,
        )
