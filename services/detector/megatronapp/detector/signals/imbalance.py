"""Imbalance that is the job's own: stages that have more to do than others, and microbatches that are heavier."""

from __future__ import annotations

import numpy as np
from megatronapp.detector.signals import matrix
from megatronapp.detector.signals.compute import ComputeEffect
from megatronapp.detector.steps import Floats, StepTable


def of_stages(table: StepTable, effect: ComputeEffect) -> Floats:
    """Compute of each stage ÷ the mean stage; the median rank stands for its stage."""
    stages = int(table.ranks.pipeline.max()) + 1 if len(table.ranks) else 0
    known = effect.seconds > 0
    seconds = np.array(
        [np.median(effect.seconds[(table.ranks.pipeline == s) & known] or [np.nan]) for s in range(stages)]
    )
    ratio: Floats = seconds / np.nanmean(seconds)
    return ratio


def of_sequences(table: StepTable) -> float:
    """By how much the heaviest replica has more work than the mean one, as a ratio; 1 where nothing tells.

    From each microbatch's time on the first stages where they are known, else from the covariates' spread.
    """
    if table.detail is not None:
        return _of_microbatches(table.detail.replica, table.detail.compute)
    compute = matrix.compute(table)
    heaviest = 1.0
    for covariate in (compute.tokens, compute.length_squares):
        for stage in np.unique(table.ranks.pipeline):
            work = np.nansum(covariate[table.ranks.pipeline == stage], axis=1)
            work = work[work > 0]
            if len(work) > 1:
                heaviest = max(heaviest, float(work.max() / work.mean()))
    return heaviest


def _of_microbatches(replica: np.ndarray, compute: Floats) -> float:
    """What all stages agree on: the median over stages of each microbatch's time, relative to its stage."""
    relative = np.nanmedian(compute / np.nanmedian(compute, axis=1, keepdims=True), axis=0)
    work = np.array([np.nansum(relative[replica == r]) for r in np.unique(replica)])
    return float(work.max() / work.mean()) if len(work) > 1 and work.mean() > 0 else 1.0
