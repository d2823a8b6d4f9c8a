"""Passes beside which gradients are reduced: in the last backward pass of a step a rank also waits for others.

Megatron-LM reduces each bucket of gradients as soon as a step's last backward pass has computed it. Where its kernels
go through one hardware queue (CUDA_DEVICE_MAX_CONNECTIONS=1), a pass stands as soon as a second reduction is behind one
that waits for a rank which is late; elsewhere the waiting kernels take part of the device. On two H100, of which one
computed slower, the other one's passes took nearly as long.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from megatronapp.core.trace.span_names import SpanName
from megatronapp.detector.steps import Rows, StepTable

HALF_A_TICK = 0.5e-9
"""Durations are whole nanoseconds, but for rounding."""


def own_passes(table: StepTable) -> Rows:
    """The table's rows; where gradients are reduced beside passes, those of GPU ranks' backward passes without the
    longest of them, each having carried as much as the others. Of a step with one backward pass none is left."""
    rows = table.rows
    if not table.reduces_beside or SpanName.BACKWARD not in table.operations:
        return rows
    backward = rows.operation == table.operations.index(SpanName.BACKWARD)
    dropped = backward & ~table.ranks.on_cpu[rows.rank] & (rows.count > 0)
    count, starved = np.maximum(rows.count, 1), np.maximum(rows.starved_count, 1)
    waited = dropped & (rows.duration - rows.starved < rows.duration_max - HALF_A_TICK)
    """Those of which the longest pass was a starved one."""
    return replace(
        rows,
        count=rows.count - dropped,
        duration=np.where(dropped, rows.duration - rows.duration_max, rows.duration),
        duration_min=np.where(dropped & (rows.count == 1), np.inf, rows.duration_min),
        tokens=rows.tokens - dropped * rows.tokens / count,
        length_squares=rows.length_squares - dropped * rows.length_squares / count,
        starved_count=rows.starved_count - waited,
        starved=np.where(waited, rows.starved - rows.duration_max, rows.starved),
        starved_tokens=rows.starved_tokens - waited * rows.starved_tokens / starved,
        starved_length_squares=rows.starved_length_squares - waited * rows.starved_length_squares / starved,
    )
