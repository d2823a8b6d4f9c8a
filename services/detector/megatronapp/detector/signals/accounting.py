"""Where each rank's step went, on its own clock: what it did itself, and what it waited for others.

As in StageFrontier (arXiv 2606.06751) no clocks are compared: in a synchronous job only a rank that makes others wait
spends time of its own while they wait.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from megatronapp.core.trace.span_names import CHECKPOINTS, STEP_COMPUTE, SpanName
from megatronapp.detector.steps import Floats, StepTable
from megatronapp.v1 import trace_pb2

COMMUNICATION = (trace_pb2.SPAN_KIND_P2P, trace_pb2.SPAN_KIND_COLLECTIVE)


@dataclass(frozen=True, slots=True)
class Accounts:
    """Seconds of one step, one entry a rank; a rank without a summary has nan."""

    compute: Floats
    """The optimizer too; thread CPU time on CPU ranks."""
    communication: Floats
    """Waiting and transfer, p2p and collectives."""
    data: Floats
    garbage: Floats
    host: Floats
    """Outside any of these: the program does something else, or stands still. nan where it may be waiting, unseen."""
    preempted: Floats
    """CPU ranks: wall time in compute without CPU time; others have the processor."""
    sync: Floats
    """Around the reduction of gradients, but not in it; nan where the two are not told apart."""
    checkpoint: Floats


def account(table: StepTable) -> Accounts:
    rows, n = table.rows, len(table.ranks)
    absent = np.where(np.isfinite(table.duration), 0.0, np.nan)
    kind = table.kinds[rows.operation]

    def total(mask: np.ndarray, column: Floats) -> Floats:
        summed: Floats = np.bincount(rows.rank[mask], column[mask], minlength=n).astype(np.float64) + absent
        return summed

    def named(*names: str) -> np.ndarray:
        return np.isin(rows.operation, [table.operations.index(name) for name in names if name in table.operations])

    computing = (kind == trace_pb2.SPAN_KIND_COMPUTE) & named(*STEP_COMPUTE)
    communicating = np.isin(kind, COMMUNICATION)
    wall = total(computing, rows.duration)
    compute = np.where(table.ranks.on_cpu, total(computing, rows.cpu), wall)
    communication = total(communicating, rows.duration)
    data, garbage, checkpoint, sync, probes = (
        total(named(*names), rows.duration)
        for names in (
            (SpanName.DATA,),
            (SpanName.GC,),
            CHECKPOINTS,
            (SpanName.GRAD_SYNC,),
            (SpanName.PROCESSOR_PROBE,),
        )
    )
    spent = wall + communication + data + garbage + checkpoint + sync + probes
    seen, apart = _waiting(table)
    return Accounts(
        compute=compute,
        communication=communication,
        data=data,
        garbage=garbage,
        host=np.where(seen, np.maximum(table.duration - spent, 0.0), np.nan),
        preempted=np.maximum(wall - compute, 0.0),
        sync=np.where(apart, sync, np.nan),
        checkpoint=checkpoint,
    )


def _have(table: StepTable, rows: npt.NDArray[np.bool_]) -> npt.NDArray[np.bool_]:
    """Ranks that have one of these rows."""
    have: npt.NDArray[np.bool_] = np.bincount(table.rows.rank[rows], minlength=len(table.ranks)) > 0
    return have


def _waiting(table: StepTable) -> tuple[npt.NDArray[np.bool_], npt.NDArray[np.bool_]]:
    """Ranks whose waiting for others is seen, so that the rest of their step is their own; and of them those whose
    waiting for gradients is seen apart from the work around it.

    Stages wait for each other's messages, replicas for each other's gradients. A program that is attached to may do
    either where nothing is told of it, and DDP's reduction is a part of what is told as grad_sync.
    """
    kind, replicas = table.kinds[table.rows.operation], len(np.unique(table.ranks.data)) > 1
    syncs = [i for i, name in enumerate(table.operations) if name == SpanName.GRAD_SYNC]
    apart = _have(table, kind == trace_pb2.SPAN_KIND_COLLECTIVE) | (not replicas)
    seen = apart | _have(table, np.isin(table.rows.operation, syncs))
    if len(np.unique(table.ranks.stage)) > 1:
        seen &= _have(table, kind == trace_pb2.SPAN_KIND_P2P)
    return seen, apart


def beside_garbage(table: StepTable, accounts: Accounts, least_seconds: float) -> npt.NDArray[np.bool_]:
    """Ranks of replicas in which somebody has collected garbage for so much longer than the median rank: its messages
    are late for that, and the stages of a replica wait for each other."""
    longer = accounts.garbage - np.nanmedian(accounts.garbage) > least_seconds
    late: npt.NDArray[np.bool_] = np.isin(table.ranks.data, table.ranks.data[longer])
    return late
