"""A job that stands still, as it is told of: since when, who holds the others up, and what witnesses say."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from megatronapp.detector import patience
from megatronapp.detector.signals.frontier import Blame
from megatronapp.detector.signals.silence import Silence
from megatronapp.v1 import trace_pb2


@dataclass(frozen=True, slots=True)
class Stall:
    """Nothing moves: since when, and who holds the others up."""

    seconds: float
    step: int
    blamed: tuple[Blame, ...]
    activities: Mapping[int, str]
    phase: int = patience.STEP
    """The foremost rank's."""
    usual_seconds: float | None = None
    """The job's longest usual pause in that phase, where it is known."""
    unheard: tuple[int, ...] = ()
    """Whom the others wait for, though nothing was ever heard of them: they may have stopped, or may not be traced."""
    gone: frozenset[int] = frozenset()
    """Ranks that had ended, or were silent, when it was looked who holds the others up."""
    stacks: Mapping[int, trace_pb2.Stack] = field(default_factory=dict)
    """Of the blamed, what their agents have seen them in."""
    silences: Mapping[int, Silence] = field(default_factory=dict)
    """Of those that are not heard of, what that says."""
    ras: str = ""
    """What NCCL's RAS subsystem says of the job."""
    ended: bool = False
    """The attempt is over: who died is blamed, and the others have ended over it."""


def with_what_was_said(stack: trace_pb2.Stack, before: trace_pb2.Stack | None) -> trace_pb2.Stack:
    """A rank that stands still is looked at again; its flight recorder, and RAS, tell a moment after its stack."""
    if before is not None:
        stack.recorder = stack.recorder or before.recorder
        stack.ras = stack.ras or before.ras
    return stack
