"""imbalance: the job's own unequal work, of stages, sequences or experts. Advice; never a page."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import numpy as np

from megatronapp.core.findings import Cause, Kind
from megatronapp.detector.rules.base import Suspicion, View, confidence, evidence, percent
from megatronapp.detector.steps import Floats


def detect(view: View) -> Iterator[Suspicion]:
    yield from _stages(view)
    yield from _sequences(view)
    yield from _experts(view)


def _stages(view: View) -> Iterator[Suspicion]:
    ranks = view.table.ranks
    for stage in view.alarmed("stage_imbalance"):
        ratio = _ratio(view, "stage_imbalance", stage)
        members = tuple(int(rank) for rank in ranks.rank[ranks.pipeline == stage])
        yield _advice(
            view,
            "stage_imbalance",
            stage,
            Cause.STAGE,
            shown="compute of the stage over that of the mean stage",
            summary=f"Stage {stage} has {percent(ratio)} more to compute than the mean stage, on all its replicas.",
            advice="Give this stage fewer layers: the last one also computes the vocabulary's logits and the loss.",
            ranks=members,
            slow=dict.fromkeys(members, ratio),
        )


def _sequences(view: View) -> Iterator[Suspicion]:
    for item in view.alarmed("sequence_imbalance"):
        ratio = _ratio(view, "sequence_imbalance", item)
        yield _advice(
            view,
            "sequence_imbalance",
            item,
            Cause.SEQUENCE_LENGTH,
            shown="work of the step's heaviest replica over that of the mean",
            summary=f"The heaviest replica of a step has {percent(ratio)} more work than the mean one: "
            "sequences of unequal length.",
            advice="Balance the microbatches by the sum of squared sequence lengths, not by tokens alone.",
            slow=_by_rank(view, view.effect.work),
        )


def _experts(view: View) -> Iterator[Suspicion]:
    load, ranks = view.effect.load, view.table.ranks
    for item in view.alarmed("expert_imbalance"):
        ratio, heaviest = _ratio(view, "expert_imbalance", item), int(np.argmax(load))
        yield _advice(
            view,
            "expert_imbalance",
            item,
            Cause.EXPERT,
            shown="compute of the most loaded experts' rank over the mean one's",
            summary=f"The router gives some experts far more tokens than others, now {load[heaviest]:.1f} times the "
            f"mean to those of rank {ranks.rank[heaviest]}; the one with the most computes {percent(ratio)} longer.",
            advice="Raise the weight of the balancing loss (--moe-aux-loss-coeff), or spread the experts differently.",
            slow=_by_rank(view, view.effect.experts),
        )


def _advice(
    view: View,
    signal: str,
    item: int,
    cause: Cause,
    *,
    shown: str,
    summary: str,
    advice: str,
    slow: Mapping[int, float],
    ranks: tuple[int, ...] = (),
) -> Suspicion:
    monitor = view.monitors[signal]
    return Suspicion(
        kind=Kind.IMBALANCE,
        cause=cause,
        ranks=ranks,
        since_step=int(monitor.since[item]),
        effect_ratio=_ratio(view, signal, item),
        evidence=(evidence(view, signal, item, shown),),
        summary=summary,
        advice=advice,
        confidence=confidence(monitor, item),
        uncertainty=monitor.uncertainty(item),
        slow_steps=monitor.slow_steps(item),
        smallest=monitor.noise.smallest,
        pages=False,
        slow=slow,
    )


def _ratio(view: View, signal: str, item: int) -> float:
    return float(np.exp(view.monitors[signal].effect[item]))


def _by_rank(view: View, work: Floats) -> dict[int, float]:
    """Work of each rank that has any."""
    return {int(rank): float(w) for rank, w in zip(view.table.ranks.rank, work, strict=True) if w > 0}
