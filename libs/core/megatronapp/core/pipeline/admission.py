"""Whether a forward may begin under a cap of activations, such that no order of choices can deadlock.

A shared cap alone deadlocks: a stage that has filled it with forwards of its first chunk can't run the forward of the
last one, on which all backwards wait. So a chunk leaves room for one activation of each later chunk: with v chunks, F
of chunk k begins only while fewer than cap − (v − 1 − k) activations are in flight. B and W always may. Activations
whose W is pending count too, wholly or in part; as W waits for nobody, they only ever delay.

Why that suffices (a structured buffer pool): activations of chunks ≤ k never number more than cap − (v − 1 − k). Take
the last part of the model that has an activation in flight. If it is the model's last, its oldest B can run. Otherwise
either its gradient has come, and B can run, or the next part's F has not; the stage of that part holds chunks below it
alone, so fewer than cap − (v − 1 − k') activations, and its F is admitted. So while anything is left to do, something
can run; that lanes are first-in, first-out does not change this, as what is done is then a prefix. It needs cap ≥ v,
and messages that arrive without waiting for the receiver. tests/unit/core/pipeline has the proof's hostile half: random
orders, none of which sticks, and most of which do without the reservation.
"""

from __future__ import annotations

from typing import Any

from megatronapp.core.pipeline.lanes import IN_FLIGHT, WHOLE


def admits(held: Any, cap: int, chunks: int, chunk: int, reserve: bool) -> bool:
    """Whether F of a chunk may begin. `reserve` False is for showing what happens without it."""
    room = cap - (chunks - 1 - chunk) if reserve else cap
    return bool(held[IN_FLIGHT] + WHOLE <= room * WHOLE)
