"""unknown: a rank makes others wait, or the whole job has slowed, and no measured reason says why. Never a guess."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator

import numpy as np

from megatronapp.core.findings import Cause, Kind
from megatronapp.core.wording import ranks_named
from megatronapp.detector.nccl_watch import START
from megatronapp.detector.rules.base import PATIENT_PAGE_STEPS, Suspicion, View, confidence, evidence, percent


def detect(view: View) -> Iterator[Suspicion]:
    yield from _waited_for(view, "wait", "what its group waits for it, as a share of the step")
    if not view.alarmed("wait"):
        yield from _waited_for(view, START, "what began later for it in NCCL's operations, as a share of the step")
    yield from _whole_job(view)


def _waited_for(view: View, signal: str, text: str) -> Iterator[Suspicion]:
    """Where wall time is the host's more than the rank's it is told, but nobody is woken.

    All stages of a replica are late together, so a replica's ranks are one finding.
    """
    alarmed = view.alarmed(signal)
    if not alarmed:
        return
    monitor, data = view.monitors[signal], view.table.ranks.data
    replicas: dict[int, list[int]] = defaultdict(list)
    for rank in alarmed:
        if (index := view.rank_index(rank)) is not None:
            replicas[int(data[index])].append(rank)
    for ranks in replicas.values():
        worst = max(ranks, key=lambda rank: float(monitor.effect[rank]))
        lost, since = float(monitor.effect[worst]) * view.step_seconds, int(monitor.since[worst])
        who = ranks_named(ranks)
        silent = " (of whom nothing is heard)" if set(ranks) <= set(view.table.missing) else ""
        yield Suspicion(
            kind=Kind.UNKNOWN,
            cause=Cause.UNKNOWN,
            ranks=tuple(ranks),
            since_step=since,
            effect_ratio=1 + max(float(monitor.effect[worst]), 0.0),
            evidence=(evidence(view, signal, worst, text, logarithmic=False),),
            summary=f"Others wait {lost:.3f} s per step for {who}{silent} since step {since}; the reason is unknown.",
            advice="Trace these ranks and their peers in full detail for a few steps.",
            confidence=confidence(monitor, worst, disputed=True),
            uncertainty=monitor.uncertainty(worst),
            slow_steps=monitor.slow_steps(worst),
            smallest=monitor.noise.smallest,
            lost_seconds=lost,
            pages=view.profile.wall_time_tells,
            page_steps=PATIENT_PAGE_STEPS,
            cost_ratio=1 + max(lost, 0.0) / view.step_seconds,
        )


def _whole_job(view: View) -> Iterator[Suspicion]:
    monitor = view.monitors["job_compute"]
    for item in view.alarmed("job_compute"):
        ratio, since = float(np.exp(monitor.effect[item])), int(monitor.since[item])
        yield Suspicion(
            kind=Kind.UNKNOWN,
            cause=Cause.UNKNOWN,
            ranks=(),
            since_step=since,
            effect_ratio=ratio,
            evidence=(evidence(view, "job_compute", item, "the median rank's compute"),),
            summary=f"All ranks compute {percent(ratio)} slower than before since step {since}.",
            advice="Check what the nodes share: power or clock limits, a changed batch, other load.",
            confidence=confidence(monitor, item, disputed=True),
            uncertainty=monitor.uncertainty(item),
            slow_steps=monitor.slow_steps(item),
            smallest=monitor.noise.smallest,
            pages=False,
            cost_ratio=ratio,
        )
