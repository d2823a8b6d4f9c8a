"""slow_gpu: a device takes longer than its peers, or than it used to, for the same work."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from megatronapp.core.findings import Cause, Kind
from megatronapp.detector.rules.base import (
    CERTAIN_SIGMAS,
    Suspicion,
    View,
    confidence,
    evidence,
    patience,
    percent,
)
from megatronapp.detector.rules.transfers import replicas
from megatronapp.detector.signals import matrix
from megatronapp.detector.signals.nodes import SlowNode
from megatronapp.detector.signals.outrun import AGREE
from megatronapp.detector.statistics.monitor import Monitor
from megatronapp.v1 import trace_pb2

SIGNALS = ("compute_effect", "own_history")
IDLING = ("send_delay", "host_gap")
"""Signals of a rank for which others wait, as shares of the usual step."""
THERMAL_REASONS = 0x08 | 0x20 | 0x40
"""NVML clock event reasons: hardware slowdown, software and hardware thermal slowdown."""
SHOWN_RANKS = 4
"""Of a slow node, in the evidence."""
MEMORY_BOUND = 0.25
"""Forward and backward must show less than this share of what the optimizer shows. A slow processor shows all of it
there, slow memory nearly nothing: with any value from 0.06 to 0.75 the same 12 simulated jobs are judged alike
(`python -m bench.scale.constants --only MEMORY_BOUND --trials 4`)."""


def detect(view: View) -> Iterator[Suspicion]:
    found = list(_slow(view))
    strongest = max((math.log(each.effect_ratio) for each in found), default=0.0)
    for each in found:
        enough = view.profile.shadow * strongest
        yield replace(each, pages=enough == 0 or math.log(each.effect_ratio) >= enough)
    yield from _slow_nodes(view)
    yield from _memory_bound(view)


def _slow(view: View) -> Iterator[Suspicion]:
    of_nodes = {rank for node in view.nodes.values() for rank in node.ranks}
    for rank in sorted({rank for signal in SIGNALS for rank in view.alarmed(signal)} - of_nodes):
        signal = _stronger(view, rank)
        disputed = _disputed(view, signal, rank)
        if not _outrun(signal, disputed=disputed) and not _idled(view, signal, rank):
            yield _suspicion(view, signal, rank, disputed=disputed)


def _outrun(signal: str, *, disputed: bool) -> bool:
    """As fast as ever beside slower peers: it is they that have become faster."""
    return signal == "compute_effect" and disputed


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
    known = bool(np.isfinite(other.excess(rank)[0]))
    return known and other.typical(rank, this.steps_since(rank)) < AGREE * float(this.effect[rank])


def _idled(view: View, signal: str, rank: int) -> bool:
    """Whether a rank is slow for want of work: somebody sends late or stands still for longer than it computes longer.

    The ranks of a replica wait for each other before each pass. Those of another one it meets once a step: it idles
    before one of its passes then, which explains as much less.
    """
    index = view.rank_index(rank)
    if index is None or not view.profile.idle_effect:
        return False
    effect = float(view.monitors[signal].effect[rank])
    longer = float(view.effect.seconds[index]) * (1 - float(np.exp(-effect)))
    own = replicas(view, (rank,))
    passes = max(1.0, float(np.nansum(matrix.compute(view.table).passes[index])))
    explained = ((own - {rank}, view.profile.idle_effect), (_others(view, own), view.profile.idle_effect / passes))
    return any(effect < most and _late_seconds(view, ranks) > longer for ranks, most in explained)


def _others(view: View, ranks: frozenset[int]) -> frozenset[int]:
    return frozenset(view.table.ranks.rank.tolist()) - ranks


def _late_seconds(view: View, ranks: frozenset[int]) -> float:
    """Of a step, by which the latest of them is known to be late; -inf: none is."""
    late = [float(view.monitors[s].effect[rank]) for s in IDLING for rank in ranks.intersection(view.alarmed(s))]
    return max(late, default=-math.inf) * view.step_seconds


def _other(signal: str) -> str:
    return SIGNALS[1 - SIGNALS.index(signal)]


def _suspicion(view: View, signal: str, rank: int, *, disputed: bool) -> Suspicion:
    monitor = view.monitors[signal]
    ratio, since = float(np.exp(monitor.effect[rank])), int(monitor.since[rank])
    index = view.rank_index(rank)
    seconds = float(view.effect.seconds[index]) if index is not None else 0.0
    cause, hint = _cause(view.telemetry.get(rank), ratio)
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
        page_steps=patience(view, since, small=_may_pass(view, monitor, rank)),
        page_seconds=view.profile.patience.seconds,
        fading=monitor.fading(rank),
        slow={rank: ratio},
    )


def _slow_nodes(view: View) -> Iterator[Suspicion]:
    """One verdict a node, once it has been slow for longer than what ends by itself."""
    for name, node in view.nodes.items():
        if not node.opened:
            continue
        effects = {rank: float(view.monitors[signal].effect[rank]) for rank, signal in node.ranks.items()}
        typical = sorted(effects, key=lambda rank: effects[rank])[len(effects) // 2]
        disputed = _disputed(view, node.ranks[typical], typical)
        if not _outrun(node.ranks[typical], disputed=disputed):
            one = _suspicion(view, node.ranks[typical], typical, disputed=disputed)
            yield _of_node(view, name, node, one, effects)


def _of_node(view: View, name: str, node: SlowNode, one: Suspicion, effects: dict[int, float]) -> Suspicion:
    """one: of the rank that is slow as most of them are."""
    (typical,) = one.ranks
    others = [rank for rank in sorted(effects) if rank != typical][: SHOWN_RANKS - 1]
    text = f"forward and backward take {percent(one.effect_ratio)} longer, as on the node's other ranks"
    return replace(
        one,
        ranks=tuple(sorted(effects)),
        since_step=node.since,
        evidence=tuple(evidence(view, node.ranks[rank], rank, text) for rank in (typical, *others)),
        summary=f"All of node {name} computes {percent(one.effect_ratio)} slower since step {node.since}.",
        advice=_NODE_ADVICE,
        pages=node.paged,
        slow={rank: float(np.exp(effect)) for rank, effect in effects.items()},
    )


def _may_pass(view: View, monitor: Monitor, rank: int) -> bool:
    """Whether it may be as small as what passes by itself."""
    least = float(monitor.effect[rank]) - CERTAIN_SIGMAS * monitor.uncertainty(rank)
    return least < math.log(view.profile.patience.passing_ratio)


def _cause(telemetry: trace_pb2.GpuTelemetry | None, effect_ratio: float) -> tuple[Cause, str]:
    """A neighbour on the device heats it, too: then it is the heat only as far as the clocks explain the effect."""
    if telemetry is None:
        return Cause.COMPUTE, ""
    hot = bool(telemetry.clock_event_reasons & THERMAL_REASONS)
    heat = f"clocks are held down at {telemetry.temperature_celsius} °C"
    if telemetry.other_processes and not (hot and effect_ratio <= _clocks_ratio(telemetry)):
        others = f"{telemetry.other_processes} other processes on its device"
        return Cause.INTERFERENCE, f" ({others}; {heat})" if hot else f" ({others})"
    return (Cause.THERMAL, f" ({heat})") if hot else (Cause.COMPUTE, "")


def _clocks_ratio(telemetry: trace_pb2.GpuTelemetry) -> float:
    """How much slower lowered clocks make a device at most; 1 where they are not known."""
    return telemetry.sm_clock_max_mhz / telemetry.sm_clock_mhz if telemetry.sm_clock_mhz else 1.0


_NODE_ADVICE = (
    "Look at what the node's devices share: power caps, cooling, other load on its host; move its ranks to another "
    "node if it stays slow."
)
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
        passes = compute.excess(rank)[: monitor.steps_since(rank)] if rank < len(compute) else np.zeros(0)
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
