"""Compute effect: how much slower a rank computes than its peers, and than itself before. Log-ratios."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from megatronapp.detector.signals import experts, matrix, peers
from megatronapp.detector.signals.microbatches import expected_share
from megatronapp.detector.signals.replicas import with_work_of_replicas
from megatronapp.detector.signals.work import WorkModel
from megatronapp.detector.statistics.scale import location
from megatronapp.detector.steps import Floats, Ints, Microbatches, StepTable

EQUAL = 0.01
"""Work that differs by less counts as equal."""
WHOLE = ("microbatch", 0)
"""The key of all of a microbatch's passes together."""


@dataclass(frozen=True, slots=True)
class Passes:
    """What a pass of the stage's mean work takes."""

    keys: tuple[tuple[str, int], ...]
    """Operation and chunk."""
    seconds: Floats
    """Ranks × keys, nan: not known this step; meaningful against the rank's own history only."""

    @property
    def known(self) -> npt.NDArray[np.bool_]:
        """Ranks of which anything is known."""
        known: npt.NDArray[np.bool_] = np.any(np.isfinite(self.seconds), axis=1)
        return known


@dataclass(frozen=True, slots=True)
class ComputeEffect:
    """All arrays have one entry a rank, nan: not known this step."""

    beside_peers: Floats
    """log(time / time of the median same-stage peer for the same work)."""
    passes: Passes
    seconds: Floats
    """Compute in this step."""
    work: Floats
    """Work of the rank's microbatches ÷ that of its stage's mean rank, by what the data says."""
    experts: Floats
    """The same for what its experts are given."""
    load: Floats
    """Tokens that its experts are given ÷ the mean of its group, 1 where not known."""
    equal_work: bool
    """All ranks of each stage have the same to do, as far as is known."""


def effect(table: StepTable, compute: matrix.Compute, work: WorkModel, healthy: npt.NDArray[np.bool_]) -> ComputeEffect:
    """compute: the table's; healthy: ranks that others may be compared with."""
    seconds = np.nansum(compute.elapsed, axis=1)
    if table.detail is not None:
        return _of_microbatches(table, table.detail, seconds)
    compute = with_work_of_replicas(compute, table.ranks)
    stage = table.ranks.pipeline
    load = experts.load(table)
    varying = work.varying(compute, stage, load)
    model = work.relative(compute, load, varying)
    work.learn(compute, load, varying, healthy)
    ratio, weights = model.total, np.nanmean(compute.elapsed, axis=0)
    alike = np.where(compute.count > 0, compute.seconds / (np.maximum(compute.count, 1) * ratio), np.nan)
    reference, bound = _reference(compute, alike, ratio, stage, healthy)
    return ComputeEffect(
        beside_peers=_at_least(_log_ratio(alike, reference), bound),
        passes=Passes(tuple(zip(compute.operations, compute.chunks, strict=True)), alike),
        seconds=seconds,
        work=_weighted(model.sequences * compute.passes, weights, stage),
        experts=_weighted(model.experts * compute.passes, weights, stage),
        load=load,
        equal_work=bool(np.all(np.abs(ratio - 1) < EQUAL)),
    )


def _reference(
    compute: matrix.Compute, alike: Floats, ratio: Floats, stage: Ints, healthy: npt.NDArray[np.bool_]
) -> tuple[Floats, npt.NDArray[np.bool_]]:
    """What peers take for the same work, and of which ranks only an upper bound is known: where all of a rank's peers
    have waited for their hosts, their devices were no slower than their passes."""
    reference = peers.beside_stage_peers(alike, stage, healthy)
    elapsed = np.where(compute.passes > 0, compute.elapsed / (np.maximum(compute.passes, 1) * ratio), np.nan)
    at_most = peers.beside_stage_peers(elapsed, stage, healthy)
    bound = np.isfinite(alike) & ~np.isfinite(reference) & np.isfinite(at_most)
    of_ranks: npt.NDArray[np.bool_] = np.any(bound, axis=1)
    return np.where(bound, at_most, reference), of_ranks


def _at_least(log_ratio: Floats, bound: npt.NDArray[np.bool_]) -> Floats:
    """Beside an upper bound of its peers' time a rank can show that it is slow, but not that it is fast."""
    return np.where(bound, np.maximum(log_ratio, 0.0), log_ratio)


def _weighted(work: Floats, weights: Floats, stage: Ints) -> Floats:
    """Each rank's work over all keys ÷ its stage's mean; 1 where unknown."""
    total = np.nansum(work * np.nan_to_num(weights), axis=1)
    mean = np.ones_like(total)
    for s in np.unique(stage):
        some = total[(stage == s) & (total > 0)]
        mean[stage == s] = some.mean() if len(some) else 1.0
    return np.where(total > 0, total / mean, 1.0)


def _log_ratio(values: Floats, reference: Floats) -> Floats:
    """log of the sums' ratio over the keys that both know: keys weigh by their time."""
    both = np.isfinite(values) & np.isfinite(reference)
    over = np.where(both, values, 0.0).sum(axis=1)
    under = np.where(both, reference, 0.0).sum(axis=1)
    return np.log(_positive(over)) - np.log(_positive(under))


def _positive(values: Floats) -> Floats:
    return np.where(values > 0, values, np.nan)


def _of_microbatches(table: StepTable, detail: Microbatches, seconds: Floats) -> ComputeEffect:
    """With every microbatch's time on every stage no covariate is needed: a heavy microbatch is heavy everywhere.

    What a microbatch takes more on one stage than on the others is that worker's doing.
    """
    expected = expected_share(detail)
    own = np.log(_positive(detail.compute)) - np.log(expected)
    replicas = np.unique(detail.replica)
    workers = np.stack([location(own[:, detail.replica == r]) for r in replicas], axis=1)
    level = np.full(len(table.ranks), np.nan)
    place = np.searchsorted(replicas, table.ranks.data)
    known = (place < len(replicas)) & (table.ranks.pipeline < len(workers))
    known &= replicas[np.minimum(place, len(replicas) - 1)] == table.ranks.data
    level[known] = workers[table.ranks.pipeline[known], place[known]]
    reference = peers.median_of_others(workers.T, np.ones(len(replicas), bool)).T
    beside = np.full(len(table.ranks), np.nan)
    beside[known] = (workers - reference)[table.ranks.pipeline[known], place[known]]
    heaviness = np.nanmedian(detail.compute / np.nanmedian(detail.compute, axis=1, keepdims=True), axis=0)
    by_replica = np.array([np.nansum(heaviness[detail.replica == r]) for r in replicas])
    work = np.ones(len(table.ranks))
    work[known] = (by_replica / by_replica.mean())[place[known]]
    none = np.ones(len(table.ranks))
    return ComputeEffect(beside, Passes((WHOLE,), np.exp(level)[:, None]), seconds, work, none, none, equal_work=False)
