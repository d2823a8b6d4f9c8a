"""Imbalance that is the job's own: stages that have more to do, and replicas whose microbatches are heavier."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from megatronapp.detector.signals.compute import ComputeEffect
from megatronapp.detector.steps import Floats, RankTable


def of_stages(ranks: RankTable, effect: ComputeEffect, healthy: npt.NDArray[np.bool_]) -> Floats:
    """log(compute of each stage ÷ the mean stage of its role); the median healthy rank stands for its stage. nan where
    there is one stage only, or a stage has nothing but slow ranks: that is their doing, not the model's."""
    stages = int(ranks.pipeline.max()) + 1 if len(ranks) else 0
    if stages < 2:
        return np.full(stages, np.nan)
    seconds = np.full(stages, np.nan)
    for stage in range(stages):
        known = effect.seconds[(ranks.pipeline == stage) & (effect.seconds > 0) & healthy]
        if len(known):
            seconds[stage] = np.median(known)
    ratio: Floats = np.log(seconds) - np.log(_mean_of_role(ranks, seconds))
    return ratio


def _mean_of_role(ranks: RankTable, seconds: Floats) -> Floats:
    """For each stage the mean over all that do its kind of work; nan where there is no other."""
    if ranks.first_stage is None:
        return np.full(len(seconds), np.mean(seconds))
    mean = np.full(len(seconds), np.nan)
    for first in np.unique(ranks.first_stage):
        after = int(ranks.pipeline[ranks.first_stage == first].max()) + 1
        mean[first:after] = np.mean(seconds[first:after]) if after - first > 1 else np.nan
    return mean


def of_sequences(ranks: RankTable, effect: ComputeEffect) -> float:
    """log(work of the heaviest replica ÷ the mean one); 0 where nothing tells work apart."""
    replicas = np.unique(ranks.data)
    work = np.array([effect.work[ranks.data == replica].mean() for replica in replicas])
    return float(np.log(work.max() / work.mean())) if len(work) > 1 else 0.0


def of_experts(effect: ComputeEffect) -> float:
    """log(what the most loaded experts' rank computes ÷ its stage's mean rank); 0 where nothing tells loads apart."""
    return float(np.log(effect.experts.max()))
