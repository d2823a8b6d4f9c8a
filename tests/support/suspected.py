"""A rank that a rule suspects."""

from __future__ import annotations

from megatronapp.core.findings import Cause, Kind
from megatronapp.detector.rules.base import Suspicion

SLOW_GPU = Suspicion(
    kind=Kind.SLOW_GPU,
    cause=Cause.INTERFERENCE,
    ranks=(3,),
    since_step=10,
    effect_ratio=1.5,
    evidence=(),
    summary="Rank 3 is slow.",
    advice="Look at it.",
    confidence=0.99,
    lost_seconds=0.1,
    slow_steps=9,
    cost_ratio=1.4,
)
