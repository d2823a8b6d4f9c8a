"""imbalance: the job's own unequal work, of stages, sequences or experts. Advice; never a page."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from megatronapp.core.findings import Cause, Kind
from megatronapp.detector.rules.base import Suspicion, View, confidence, evidence, percent


def detect(view: View) -> Iterator[Suspicion]:
    yield from _stages(view)
    yield from _sequences(view)
    yield from _experts(view)


def _stages(view: View) -> Iterator[Suspicion]:
    monitor, ranks = view.monitors["stage_imbalance"], view.table.ranks
    for stage in view.alarmed("stage_imbalance"):
        ratio, since = float(np.exp(monitor.effect[stage])), int(monitor.since[stage])
        members = tuple(int(rank) for rank in ranks.rank[ranks.pipeline == stage])
        yield Suspicion(
            kind=Kind.IMBALANCE,
            cause=Cause.STAGE,
            ranks=members,
            since_step=since,
            effect_ratio=ratio,
            evidence=(evidence(view, "stage_imbalance", stage, "compute of the stage over that of the mean stage"),),
            summary=f"Stage {stage} has {percent(ratio)} more to compute than the mean stage, on all its replicas.",
            advice="Give this stage fewer layers: the last one also computes the vocabulary's logits and the loss.",
            confidence=confidence(monitor, stage),
            uncertainty=monitor.uncertainty(stage),
            smallest=monitor.noise.smallest,
            pages=False,
            slow=dict.fromkeys(members, ratio),
        )


def _sequences(view: View) -> Iterator[Suspicion]:
    monitor = view.monitors["sequence_imbalance"]
    for item in view.alarmed("sequence_imbalance"):
        ratio, since = float(np.exp(monitor.effect[item])), int(monitor.since[item])
        work, ranks = view.effect.work, view.table.ranks
        yield Suspicion(
            kind=Kind.IMBALANCE,
            cause=Cause.SEQUENCE_LENGTH,
            ranks=(),
            since_step=since,
            effect_ratio=ratio,
            evidence=(
                evidence(view, "sequence_imbalance", item, "work of the step's heaviest replica over that of the mean"),
            ),
            summary=f"The heaviest replica of a step has {percent(ratio)} more work than the mean one: "
            "sequences of unequal length.",
            advice="Balance the microbatches by the sum of squared sequence lengths, not by tokens alone.",
            confidence=confidence(monitor, item),
            uncertainty=monitor.uncertainty(item),
            smallest=monitor.noise.smallest,
            pages=False,
            slow={int(rank): float(w) for rank, w in zip(ranks.rank, work, strict=True) if w > 0},
        )


def _experts(view: View) -> Iterator[Suspicion]:
    monitor = view.monitors["expert_imbalance"]
    for item in view.alarmed("expert_imbalance"):
        ratio, since = float(np.exp(monitor.effect[item])), int(monitor.since[item])
        effect, ranks = view.effect, view.table.ranks
        heaviest = int(np.argmax(effect.load))
        yield Suspicion(
            kind=Kind.IMBALANCE,
            cause=Cause.EXPERT,
            ranks=(),
            since_step=since,
            effect_ratio=ratio,
            evidence=(
                evidence(
                    view, "expert_imbalance", item, "compute of the most loaded experts' rank over the mean one's"
                ),
            ),
            summary=f"The router gives some experts far more tokens than others, now {effect.load[heaviest]:.1f} times "
            f"the mean to those of rank {ranks.rank[heaviest]}; who has the most computes {percent(ratio)} longer.",
            advice="Raise the weight of the balancing loss (--moe-aux-loss-coeff), or spread the experts differently.",
            confidence=confidence(monitor, item),
            uncertainty=monitor.uncertainty(item),
            smallest=monitor.noise.smallest,
            pages=False,
            slow={int(rank): float(w) for rank, w in zip(ranks.rank, effect.experts, strict=True) if w > 0},
        )
