"""slow_host: the device is ready, but its host is late: a busy or stalled CPU, slow data, garbage collection."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from megatronapp.core.findings import Cause, Kind
from megatronapp.detector.rules.base import Suspicion, View, confidence, evidence, patience, percent

CAUSES = {
    "data_wait": (Cause.DATA_LOADING, "waits for its data"),
    "garbage_collection": (Cause.GARBAGE_COLLECTION, "collects garbage"),
    "host_gap": (Cause.HOST_CPU, "stands still on its host"),
    "preempted": (Cause.HOST_CPU, "is kept off the processor"),
}
TICKETS = ("preempted",)
"""Wall time of CPU ranks is their host's matter: it is told, but nobody is woken."""
_ADVICE = {
    Cause.DATA_LOADING: "Look at the storage and the data loader's workers of this rank's node.",
    Cause.GARBAGE_COLLECTION: "Disable automatic garbage collection and collect on all ranks in the same step.",
    Cause.HOST_CPU: "Look for other load on the node's CPUs, CPU limits of the pod, and swapping.",
}


def detect(view: View) -> Iterator[Suspicion]:
    for signal, (cause, text) in CAUSES.items():
        for rank in view.alarmed(signal):
            yield _suspicion(view, signal, rank, cause, text)
    yield from _starved(view)


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
            evidence(view, signal, rank, f"it {text} {lost:.3f} s a step longer than its peers", logarithmic=False),
        ),
        summary=f"Rank {rank} {text} {lost:.3f} s a step longer than its peers since step {since}.",
        advice=_ADVICE[cause],
        confidence=confidence(monitor, rank),
        uncertainty=monitor.uncertainty(rank),
        smallest=monitor.noise.smallest,
        lost_seconds=lost,
        pages=signal not in TICKETS,
        page_steps=patience(view),
        slow={} if signal in TICKETS else {rank: ratio},
        cost_ratio=1 + max(lost, 0.0) / view.step_seconds,
    )


def _starved(view: View) -> Iterator[Suspicion]:
    """Kernels start as soon as they are enqueued: the host, not the device, sets the pace within the passes."""
    compute = view.monitors["compute_effect"]
    for rank in view.alarmed("starved"):
        if rank >= len(compute) or not compute.alarmed[rank]:
            continue
        ratio, since = float(np.exp(compute.effect[rank])), int(compute.since[rank])
        index = view.rank_index(rank)
        lost = float(view.effect.seconds[index]) * (1 - 1 / ratio) if index is not None else 0.0
        yield Suspicion(
            kind=Kind.SLOW_HOST,
            cause=Cause.HOST_CPU,
            ranks=(rank,),
            since_step=since,
            effect_ratio=ratio,
            evidence=(
                evidence(view, "compute_effect", rank, f"forward and backward take {percent(ratio)} longer"),
                evidence(view, "starved", rank, "its kernels no longer queue: the host is late", logarithmic=False),
            ),
            summary=f"Rank {rank}'s host launches late since step {since}; its passes take {percent(ratio)} longer.",
            advice=_ADVICE[Cause.HOST_CPU],
            confidence=confidence(compute, rank),
            uncertainty=compute.uncertainty(rank),
            smallest=compute.noise.smallest,
            lost_seconds=lost,
            slow={rank: ratio},
        )


def _ratio(view: View, rank: int, lost: float) -> float:
    index = view.rank_index(rank)
    busy = float(view.accounts.compute[index]) if index is not None else np.nan
    return 1 + max(lost, 0.0) / busy if busy > 0 else 1 + max(lost, 0.0) / view.step_seconds
