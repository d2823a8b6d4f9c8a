"""hang: nothing moves any more; which rank stopped first, at which operation, on its host or on its device."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Protocol

from megatronapp.core.findings import Cause, Evidence, Kind
from megatronapp.core.trace.message_id import describe
from megatronapp.detector.rules.base import Suspicion
from megatronapp.detector.signals.frontier import Blame, Side
from megatronapp.v1 import trace_pb2

_CAUSE = {Side.HOST: Cause.HOST_CPU, Side.DEVICE: Cause.COMPUTE, Side.NETWORK: Cause.NIC}
_DOES = {
    Side.HOST: "has not entered {operation} of {communicator}",
    Side.DEVICE: "has {operation} of {communicator} enqueued, and its device does not come to it",
    Side.NETWORK: "is in {operation} of {communicator}, as all its members are, and it does not end",
}
_ADVICE = {
    Side.HOST: "Take the rank's Python stacks (py-spy dump); restart the job without its node if it can't continue.",
    Side.DEVICE: "Look for XID errors and uncorrectable ECC errors of the rank's device; restart without its node.",
    Side.NETWORK: "Check the links between the members of this communicator.",
}

_DURING: dict[int, str] = {
    trace_pb2.PHASE_CHECKPOINT: "the checkpoint after ",
    trace_pb2.PHASE_EVALUATION: "the evaluation after ",
    trace_pb2.PHASE_START: "the first step, ",
}


class Stalled(Protocol):
    """What the rule needs to know of a stall."""

    @property
    def seconds(self) -> float: ...
    @property
    def step(self) -> int: ...
    @property
    def blamed(self) -> tuple[Blame, ...]: ...
    @property
    def phase(self) -> int: ...


def detect(stall: Stalled | None, *, link_is_known: bool) -> Iterator[Suspicion]:
    """One verdict for each blamed rank; one without ranks when nobody can be blamed."""
    if stall is None:
        return
    network = [b for b in stall.blamed if b.side is Side.NETWORK]
    for b in stall.blamed:
        if b.side is not Side.NETWORK:
            yield _suspicion(stall, (b.rank,), b, _CAUSE[b.side])
    if network:
        ranks = tuple(b.rank for b in network)
        yield _suspicion(stall, ranks, network[0], Cause.NIC if link_is_known else Cause.UNKNOWN)
    if not stall.blamed:
        yield _suspicion(stall, (), None, Cause.UNKNOWN)


def _when(stall: Stalled) -> str:
    """Empty where the source knows no step."""
    if not stall.step:
        return " since the start" if stall.phase == trace_pb2.PHASE_START else ""
    return f" in {_DURING.get(stall.phase, '')}step {stall.step}"


def _operation(b: Blame) -> str:
    operation = b.operation or "an operation"
    if b.message is None:
        return f"{operation} {b.sequence}"
    step, name = b.message
    return f"{operation} ({describe(name)}, step {step})"


def _suspicion(stall: Stalled, ranks: tuple[int, ...], b: Blame | None, cause: Cause) -> Suspicion:
    who = ("Ranks " if len(ranks) > 1 else "Rank ") + ", ".join(map(str, ranks)) if ranks else "Nobody"
    said = "can be named" if b is None else _DOES[b.side].format(operation=_operation(b), communicator=b.communicator)
    waiting = f"; waiting for it: {', '.join(map(str, b.waiting[:16]))}" if b and b.waiting else ""
    text = f"{who} {said}{waiting}."
    return Suspicion(
        kind=Kind.HANG,
        cause=cause,
        ranks=ranks,
        since_step=stall.step or None,
        effect_ratio=1.0,
        evidence=(Evidence(signal="frontier", text=text, unit="operations"),),
        summary=f"Nothing has moved{_when(stall)}. {text}",
        advice=_ADVICE[b.side] if b else "Take the Python stacks of all ranks (py-spy dump).",
        confidence=0.95 if b and b.side is not Side.NETWORK else 0.5,
        cost_ratio=math.inf,
    )
