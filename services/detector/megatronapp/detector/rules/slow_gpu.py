"""slow_gpu: a device takes longer than its peers, or than it used to, for the same work."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from megatronapp.core.findings import Cause, Kind
from megatronapp.detector.rules.base import Suspicion, View, confidence, evidence, patience, percent

SIGNALS = ("compute_effect", "own_history")
AGREE = 0.3
"""The other signal must show at least this share of the effect, where it can speak."""
THERMAL_REASONS = 0x08 | 0x20 | 0x40
"""NVML clock event reasons: hardware slowdown, software and hardware thermal slowdown."""
MEMORY_BOUND = 0.25
"""Forward and backward must show less than this share of what the optimizer shows."""


def detect(view: View) -> Iterator[Suspicion]:
    found = list(_slow(view))
    strongest = max((math.log(each.effect_ratio) for each in found), default=0.0)
    for each in found:
        enough = view.profile.shadow * strongest
        yield replace(each, pages=enough == 0 or math.log(each.effect_ratio) >= enough)
    yield from _memory_bound(view)


def _slow(view: View) -> Iterator[Suspicion]:
    for rank in sorted({rank for signal in SIGNALS for rank in view.alarmed(signal)}):
        signal = _stronger(view, rank)
        disputed = _disputed(view, signal, rank)
        # As fast as ever beside slower peers: it is they that have become faster.
        if (signal == "own_history" or not disputed) and not _idled(view, signal, rank):
            yield _suspicion(view, signal, rank, disputed=disputed)


def _stronger(view: View, rank: int) -> str:
    """The signal that says more of an alarmed rank; peers first when both are alarmed."""
    return next(s for s in SIGNALS if rank < len(view.monitors[s]) and view.monitors[s].alarmed[rank])


def _disputed(view: View, signal: str, rank: int) -> bool:
    """Whether the other signal can speak of the rank now, and shows too little of what this one does.

    It cannot without a history from before, and where nobody is left to compare with: no rank does the same work, or
    all that do are slow too.
    """
    this, other = view.monitors[signal], view.monitors[_other(signal)]
    if rank >= len(other) or not other.ready[rank] or not this.ready[rank]:
        return False
    steps = max(1, sum(1 for s in this.series(rank).steps if s >= this.since[rank]))
    shown = other.excess(rank)[:steps]
    return bool(np.isfinite(shown[0])) and float(np.nanmedian(shown)) < AGREE * float(this.effect[rank])


def _idled(view: View, signal: str, rank: int) -> bool:
    """Whether a rank is slow for want of work: each of its messages comes late, by more than it computes longer."""
    index = view.rank_index(rank)
    effect = float(view.monitors[signal].effect[rank])
    delay = view.monitors.get("send_delay")
    if effect >= view.profile.idle_effect or index is None or delay is None:
        return False
    longer = float(view.effect.seconds[index]) * (1 - float(np.exp(-effect)))
    senders = set(view.messages.sender[view.messages.peer == rank].tolist()).intersection(view.alarmed("send_delay"))
    late = max((float(delay.effect[sender]) for sender in senders), default=0.0) * view.step_seconds
    return late > longer


def _other(signal: str) -> str:
    return SIGNALS[1 - SIGNALS.index(signal)]


def _suspicion(view: View, signal: str, rank: int, *, disputed: bool) -> Suspicion:
    monitor = view.monitors[signal]
    ratio, since = float(np.exp(monitor.effect[rank])), int(monitor.since[rank])
    index = view.rank_index(rank)
    seconds = float(view.effect.seconds[index]) if index is not None else 0.0
    cause, hint = _cause(view, rank)
    shown = [s for s in SIGNALS if rank < len(view.monitors[s]) and view.monitors[s].alarmed[rank]]
    texts = {
        "compute_effect": f"forward and backward take {percent(ratio)} longer than on the ranks with the same work",
        "own_history": f"forward and backward take {percent(ratio)} longer than on this rank before",
    }
    return Suspicion(
        kind=Kind.SLOW_GPU,
        cause=cause,
        ranks=(rank,),
        since_step=since,
        effect_ratio=ratio,
        evidence=tuple(evidence(view, s, rank, texts[s]) for s in shown),
        summary=f"Rank {rank} computes {percent(ratio)} slower since step {since}{hint}.",
        advice=_ADVICE[cause],
        confidence=confidence(monitor, rank, disputed=disputed),
        uncertainty=monitor.uncertainty(rank),
        slow_steps=monitor.slow_steps(rank),
        smallest=monitor.noise.smallest,
        lost_seconds=seconds * (1 - 1 / ratio),
        page_steps=patience(view, since, effect_ratio=ratio),
        page_seconds=view.profile.patience.seconds,
        fading=monitor.fading(rank),
        slow={rank: ratio},
    )


def _cause(view: View, rank: int) -> tuple[Cause, str]:
    telemetry = view.telemetry.get(rank)
    if telemetry is not None and telemetry.clock_event_reasons & THERMAL_REASONS:
        return Cause.THERMAL, f" (clocks are held down at {telemetry.temperature_celsius} °C)"
    if telemetry is not None and telemetry.other_processes:
        return Cause.INTERFERENCE, f" ({telemetry.other_processes} other processes on its device)"
    return Cause.COMPUTE, ""


_ADVICE = {
    Cause.COMPUTE: "Compare the device's clocks, power and ECC counters with its neighbours'; move the rank to another "
    "device if it stays slow.",
    Cause.THERMAL: "Check cooling and power of the node; move the rank to another device until it is fixed.",
    Cause.INTERFERENCE: "Find the other processes on the device and stop or move them.",
    Cause.MEMORY_BOUND: "Check the device's memory: ECC counters, remapped rows, memory clock.",
}


def _memory_bound(view: View) -> Iterator[Suspicion]:
    """The optimizer streams through memory: slow there alone means slow memory, not a slow processor."""
    monitor, compute = view.monitors["optimizer"], view.monitors["compute_effect"]
    for rank in view.alarmed("optimizer"):
        steps = max(1, sum(1 for s in monitor.series(rank).steps if s >= monitor.since[rank]))
        passes = compute.excess(rank)[:steps] if rank < len(compute) else np.zeros(0)
        beside = float(np.median(passes[np.isfinite(passes)])) if np.isfinite(passes).any() else 0.0
        index = view.rank_index(rank)
        if (
            not view.profile.optimizer_tells_memory
            or index is None
            or beside > MEMORY_BOUND * float(monitor.effect[rank])
        ):
            continue
        ratio, since = float(np.exp(monitor.effect[rank])), int(monitor.since[rank])
        lost = float(view.accounts.compute[index] - view.effect.seconds[index]) * (1 - 1 / ratio)
        yield Suspicion(
            kind=Kind.SLOW_GPU,
            cause=Cause.MEMORY_BOUND,
            ranks=(rank,),
            since_step=since,
            effect_ratio=ratio,
            evidence=(evidence(view, "optimizer", rank, "the optimizer alone is slower than on its peers"),),
            summary=f"Rank {rank}'s optimizer takes {percent(ratio)} longer since step {since}; its passes do not.",
            advice=_ADVICE[Cause.MEMORY_BOUND],
            confidence=confidence(monitor, rank),
            uncertainty=monitor.uncertainty(rank),
            slow_steps=monitor.slow_steps(rank),
            smallest=monitor.noise.smallest,
            lost_seconds=lost,
            cost_ratio=1 + max(lost, 0.0) / view.step_seconds,
        )
