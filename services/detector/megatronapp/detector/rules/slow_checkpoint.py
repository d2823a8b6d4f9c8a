"""slow_host/checkpoint: a rank writes its part of a checkpoint more slowly than before, and all wait for it.

That a save takes time is no fault: steps with one are judged by this rule alone.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from megatronapp.core.findings import Cause, Kind
from megatronapp.detector.rules.base import Suspicion, View, confidence, evidence


def detect(view: View) -> Iterator[Suspicion]:
    for rank in view.alarmed("checkpoint"):
        seconds = view.saves.lost.get(rank, np.nan)
        yield _suspicion(view, "checkpoint", rank, (rank,), seconds, f"rank {rank} takes", "its part of a checkpoint")
    for item in view.alarmed("job_checkpoint"):
        seconds = max((s for s in view.saves.lost.values() if np.isfinite(s)), default=np.nan)
        yield _suspicion(view, "job_checkpoint", item, (), seconds, "all ranks take", "checkpoints")


def _suspicion(
    view: View, signal: str, item: int, ranks: tuple[int, ...], seconds: float, who: str, what: str
) -> Suspicion:
    """seconds: that the newest save took longer than usual."""
    monitor = view.monitors[signal]
    ratio, since = float(np.exp(monitor.effect[item])), int(monitor.since[item])
    lost = max(seconds, 0.0) / view.saves.interval_steps if np.isfinite(seconds) else 0.0
    return Suspicion(
        kind=Kind.SLOW_HOST if ranks else Kind.UNKNOWN,
        cause=Cause.CHECKPOINT,
        ranks=ranks,
        since_step=since,
        effect_ratio=ratio,
        evidence=(evidence(view, signal, item, "time of the write over its usual time"),),
        summary=f"Since step {since} {who} {ratio:.1f} times as long as before to write {what}.",
        advice="Check the disk, the network and the storage that this node writes checkpoints to."
        if ranks
        else "Check the storage that all ranks write checkpoints to.",
        confidence=confidence(monitor, item),
        uncertainty=monitor.uncertainty(item),
        slow_steps=monitor.slow_steps(item),
        smallest=monitor.noise.smallest,
        lost_seconds=lost,
        pages=bool(ranks) and view.profile.wall_time_tells,
        cost_ratio=1 + lost / view.step_seconds,
    )
