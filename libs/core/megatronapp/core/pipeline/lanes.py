"""A stage's lanes: how far each has come, and how much is in flight.

Each lane runs its microbatches in order, so one number tells all that it has done: gradients are summed in the order of
microbatches whichever way lanes are mixed, and are therefore bitwise those of any other schedule.

The state is two sequences of whole numbers, lists or arrays: `started`, by lane; `held`, (activations in flight now, at
most so far) in thousandths of one. An activation is in flight from the begin of its F to the end of its W, or of its B
where that is not split; while its W is pending it counts `pending` thousandths. Functions here and in admission and
policy take the state as it is, so that the simulator's compiled form runs the same code as the trainer.
"""

from __future__ import annotations

from typing import Any

IN_FLIGHT, PEAK = 0, 1
WHOLE = 1000
"""One activation."""


def start(started: Any, held: Any, chunks: int, lane: int) -> None:
    """A stage begins the operation at the head of a lane."""
    started[lane] += 1
    if lane < chunks:
        held[IN_FLIGHT] += WHOLE
        held[PEAK] = max(held[PEAK], held[IN_FLIGHT])


def end(started: Any, held: Any, chunks: int, lane: int, pending: int) -> None:
    """It has ended."""
    if lane >= 2 * chunks:
        held[IN_FLIGHT] -= pending
    elif lane >= chunks:
        held[IN_FLIGHT] -= WHOLE - pending if len(started) > 2 * chunks else WHOLE
