"""Passes beside which gradients are reduced: in the last backward pass of a step a rank also waits for others.

Megatron-LM reduces each bucket of gradients as soon as a step's last backward pass has computed it. Where its kernels
go through one hardware queue (CUDA_DEVICE_MAX_CONNECTIONS=1), a pass stands as soon as a second reduction is behind one
that waits for a rank which is late; elsewhere the waiting kernels take part of the device. Of two H100, one of which
computed slower by half, the other one's last backward pass took 92 ms in place of 38 to 48; all others took 17.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import numpy.typing as npt

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
    of_starved = dropped & _starved(rows)
    return replace(
        rows,
        count=rows.count - dropped,
        duration=np.where(dropped, rows.duration - rows.duration_max, rows.duration),
        tokens=rows.tokens - dropped * rows.tokens / count,
        length_squares=rows.length_squares - dropped * rows.length_squares / count,
        starved_count=rows.starved_count - of_starved,
        starved=np.where(of_starved, rows.starved - rows.duration_max, rows.starved),
        starved_tokens=rows.starved_tokens - of_starved * rows.starved_tokens / starved,
        starved_length_squares=rows.starved_length_squares - of_starved * rows.starved_length_squares / starved,
    )


def _starved(rows: Rows) -> npt.NDArray[np.bool_]:
    """Whether a row's longest pass is one of its starved ones: of those, or of the others, it raises the mean."""
    fed, fed_count = rows.duration - rows.starved, rows.count - rows.starved_count
    longest = rows.duration_max - HALF_A_TICK
    larger = rows.starved * np.maximum(fed_count, 1) >= fed * np.maximum(rows.starved_count, 1)
    found: npt.NDArray[np.bool_] = (rows.starved >= longest) & (larger | (fed < longest))
    return found
