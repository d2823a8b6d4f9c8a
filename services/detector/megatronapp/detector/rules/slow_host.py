"""slow_host: the device is ready, but its host is late: a busy or stalled CPU, slow data, garbage collection."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from megatronapp.core.findings import Cause, Kind
from megatronapp.detector.rules.base import (
    PATIENT_PAGE_STEPS,
    Suspicion,
    View,
    confidence,
    evidence,
    percent,
)

CAUSES = {
    "data_wait": (Cause.DATA_LOADING, "waits for its data"),
    "garbage_collection": (Cause.GARBAGE_COLLECTION, "collects garbage"),
    "host_gap": (Cause.HOST_CPU, "stands still on its host"),
    "preempted": (Cause.HOST_CPU, "is kept off the processor"),
}
LAUNCHING_PAGE_STEPS = 40
"""How fast a host launches wavers with all that runs on it, by tens of percent over tens of steps (measured on a host
that others share)."""
TICKETS = ("preempted",)
"""Wall time of CPU ranks is their host's matter: it is told, but nobody is woken."""
_ADVICE = {
    Cause.DATA_LOADING: "Check the storage and the data loader's workers of this rank's node.",
    Cause.GARBAGE_COLLECTION: "Disable automatic garbage collection and collect on all ranks in the same step.",
    Cause.HOST_CPU: "Look for other load on the node's CPUs, CPU limits of the pod, and swapping.",
}


def detect(view: View) -> Iterator[Suspicion]:
    for signal, (cause, text) in CAUSES.items():
        for rank in view.alarmed(signal):
            yield _suspicion(view, signal, rank, cause, text)
    yield from _launching(view)


def _suspicion(view: View, signal: str, rank: int, cause: Cause, text: str) -> Suspicion:
    """The signals are shares of the job's usual step."""
    monitor, since = view.monitors[signal], int(view.monitors[signal].since[rank])
    lost = float(monitor.effect[rank]) * view.step_seconds
    ratio = _ratio(view, rank, lost)
    return Suspicion(
        kind=Kind.SLOW_HOST,
        cause=cause,
        ranks=(rank,),
        since_step=since,
        effect_ratio=ratio,
        evidence=(
            evidence(view, signal, rank, f"it {text} {lost:.3f} s per step longer than its peers", logarithmic=False),
        ),
        summary=f"Rank {rank} {text} {lost:.3f} s per step longer than its peers since step {since}.",
        advice=_ADVICE[cause],
        confidence=confidence(monitor, rank),
        uncertainty=monitor.uncertainty(rank),
        slow_steps=monitor.slow_steps(rank),
        smallest=monitor.noise.smallest,
        lost_seconds=lost,
        pages=signal not in TICKETS,
        page_steps=PATIENT_PAGE_STEPS,
        page_seconds=view.profile.patience.seconds,
        fading=monitor.fading(rank),
        slow={} if signal in TICKETS else {rank: ratio},
        cost_ratio=1 + max(lost, 0.0) / view.step_seconds,
    )


def _launching(view: View) -> Iterator[Suspicion]:
    """Kernels start as soon as they are enqueued: the host, not the device, sets the pace within the passes."""
    for rank in view.alarmed("launching"):
        monitor = view.monitors["launching"]
        ratio, since = float(np.exp(monitor.effect[rank])), int(monitor.since[rank])
        index = view.rank_index(rank)
        lost = float(view.effect.seconds[index]) * (1 - 1 / ratio) if index is not None else 0.0
        yield Suspicion(
            kind=Kind.SLOW_HOST,
            cause=Cause.HOST_CPU,
            ranks=(rank,),
            since_step=since,
            effect_ratio=ratio,
            evidence=(
                evidence(view, "launching", rank, f"its device waits for work; passes take {percent(ratio)} longer"),
            ),
            summary=f"Rank {rank}'s host launches late since step {since}; its passes take {percent(ratio)} longer.",
            advice=_ADVICE[Cause.HOST_CPU],
            confidence=confidence(monitor, rank),
            uncertainty=monitor.uncertainty(rank),
            slow_steps=monitor.slow_steps(rank),
            smallest=monitor.noise.smallest,
            lost_seconds=lost,
            page_steps=LAUNCHING_PAGE_STEPS,
            fading=monitor.fading(rank),
            slow={rank: ratio},
        )


def _ratio(view: View, rank: int, lost: float) -> float:
    index = view.rank_index(rank)
    busy = float(view.accounts.compute[index]) if index is not None else np.nan
    return 1 + max(lost, 0.0) / busy if busy > 0 else 1 + max(lost, 0.0) / view.step_seconds
