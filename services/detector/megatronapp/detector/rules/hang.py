"""hang: nothing moves any more; which rank stopped first, at which operation, on its host or on its device, or which
ranks wait for each other."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping
from typing import Protocol

from megatronapp.core.findings import Cause, Evidence, Kind
from megatronapp.core.trace.message_id import describe
from megatronapp.core.wording import TOLD_RANKS, ranks_named
from megatronapp.detector.rules import stuck_sends
from megatronapp.detector.rules.base import Suspicion
from megatronapp.detector.signals.frontier import Blame, Side
from megatronapp.detector.signals.silence import Silence
from megatronapp.v1 import trace_pb2

_CAUSE = {
    Side.HOST: Cause.HOST_CPU,
    Side.DEVICE: Cause.COMPUTE,
    Side.NETWORK: Cause.NIC,
    Side.PROGRAM: Cause.DEADLOCK,
    Side.STOPPED: Cause.HOST_CPU,
    Side.DEADLOCK: Cause.DEADLOCK,
    Side.CIRCULAR: Cause.UNKNOWN,
}
_DOES = {
    Side.HOST: "has not entered {operation} of {communicator}",
    Side.DEVICE: "has {operation} of {communicator} enqueued, and its device does not come to it",
    Side.NETWORK: "is in {operation} of {communicator}, as all its members are, and it does not end",
    Side.PROGRAM: "calls {operation} of {communicator}, where others call {instead}",
    Side.STOPPED: "does not go on",
}
_ADVICE = {
    Side.HOST: "Take the rank's Python stacks (py-spy dump); restart the job without its node if it can't continue.",
    Side.DEVICE: "Look for XID errors and uncorrectable ECC errors of the rank's device; restart without its node.",
    Side.NETWORK: "Check the links between the members of this communicator.",
    Side.PROGRAM: "Take the rank's Python stack (py-spy dump): its program skips an operation, or calls it in another "
    "order or size, which a restart alone does not change.",
    Side.STOPPED: "Look for who has stopped the process (SIGSTOP, a debugger), and let it go on: kill -CONT.",
    Side.DEADLOCK: "Take these ranks' Python stacks (py-spy dump): they run these operations in different orders, "
    "which a restart alone does not change. Make the order the same on all of them.",
    Side.CIRCULAR: "Take these ranks' Python stacks (py-spy dump): one of them has stopped elsewhere, or they run "
    "these operations in different orders.",
}
_ADVICE_DEAD = (
    "Look for why the process ended: the kernel's log (out of memory), its container's and launcher's, its own log. "
    "The errors of the other ranks only follow from it."
)
_STANDS = "does not come to {operation} of {communicator}: its device stands in work that was launched before"
_LEFT = {
    Side.HOST: "has not entered {operation} of {communicator}",
    Side.DEVICE: "had {operation} of {communicator} enqueued",
}
"""Where a process stood that has ended: neither its host nor its device can go on."""
_SILENT = {
    Silence.ENDED: "Its process has ended without a goodbye",
    Silence.RANK: "Nothing is heard of it any more",
    Silence.NODE: "Nothing is heard of any rank of its node",
}
_HALTED = ("stopped", "traced", "zombie")
DIED = 0.85
"""Confidence that a rank has died by itself: not enough to leave its node by itself."""
_CERTAIN = {Side.HOST, Side.DEVICE, Side.DEADLOCK, Side.PROGRAM, Side.STOPPED}
TOLD_STACKS = 4
"""Of a verdict; each has up to 16,384 characters."""
TOLD_EDGES = 4
"""Of a circle; the others are alike."""

_PAIR = re.compile(r"p2p:(\d+)-(\d+)")
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
    @property
    def usual_seconds(self) -> float | None: ...
    @property
    def unheard(self) -> tuple[int, ...]: ...
    @property
    def stacks(self) -> Mapping[int, trace_pb2.Stack]: ...
    @property
    def ras(self) -> str: ...
    @property
    def silences(self) -> Mapping[int, Silence]: ...
    @property
    def ended(self) -> bool: ...


def detect(stall: Stalled | None, *, link_is_known: bool) -> Iterator[Suspicion]:
    """One verdict for each blamed rank, one for all of a circle; one without ranks when nobody can be blamed."""
    if stall is None:
        return
    network = [b for b in stall.blamed if b.side is Side.NETWORK]
    circles: dict[tuple[int, ...], list[Blame]] = {}
    for b in stall.blamed:
        if b.circle:
            circles.setdefault(b.circle, []).append(b)
        elif b.side is not Side.NETWORK:
            yield _suspicion(stall, (b.rank,), b, Cause.HOST_CPU if _has_ended(stall, b) else _CAUSE[b.side])
    for ranks, edges in circles.items():
        first = edges[0]
        text = _of_differing(ranks, edges) if first.side is Side.PROGRAM else _of_circle(ranks, edges)
        yield _described(stall, first.suspects or ranks, first, _CAUSE[first.side], text)
    if network:
        ranks = stuck_sends.senders(stall.stacks, [b.rank for b in network])
        yield _suspicion(stall, ranks, network[0], Cause.NIC if link_is_known else Cause.UNKNOWN)
    if not stall.blamed:
        yield _of_nobody(stall)


def _when(stall: Stalled) -> str:
    """Empty where the source knows no step."""
    if not stall.step:
        return " since the start" if stall.phase == trace_pb2.PHASE_START else ""
    return f" in {_DURING.get(stall.phase, '')}step {stall.step}"


def _pause(stall: Stalled) -> str:
    """What is usual, where that is known: the page tells by what the job was judged."""
    return "" if stall.usual_seconds is None else f" Its longest usual pause is {stall.usual_seconds:.1f} s."


def _operation(b: Blame) -> str:
    operation = b.operation or "an operation"
    if b.message is None:
        return f"{operation} {'as operation ' if b.side is Side.PROGRAM else ''}{b.sequence}"
    step, name = b.message
    return f"{operation} ({describe(name)}, step {step})"


def _where(communicator: str) -> str:
    """With who sends to whom, of messages."""
    ends = _PAIR.fullmatch(communicator)
    return f"{communicator} (rank {ends[1]} to rank {ends[2]})" if ends else communicator


def _of_circle(ranks: tuple[int, ...], edges: list[Blame]) -> str:
    waits = [
        f"rank {b.waiting[0]} for rank {b.rank} to enter {_operation(b)} of {_where(b.communicator)}"
        for b in edges[:TOLD_EDGES]
    ]
    first, more = edges[0], ""
    if first.side is not Side.DEADLOCK:
        more = "; it can't be told whether one of them stopped elsewhere before"
    elif first.suspects:
        more = f"; one of {ranks_named(first.suspects)} runs these in another order than all others"
    return f"{_named(ranks)} wait for {'each other' if len(ranks) == 2 else 'one another'}: {', '.join(waits)}{more}."


def _of_differing(ranks: tuple[int, ...], edges: list[Blame]) -> str:
    calls = ", ".join(f"rank {b.rank} {b.operation}" for b in edges[:TOLD_EDGES])
    what = f"as operation {edges[0].sequence} of {edges[0].communicator}"
    return f"{_named(ranks)} call different operations {what}: {calls}; it can't be told which of them is right."


def _named(ranks: tuple[int, ...]) -> str:
    return ranks_named(ranks).capitalize()


def _of_nobody(stall: Stalled) -> Suspicion:
    unheard = f": the others wait for {ranks_named(stall.unheard)}, of whom nothing was ever heard"
    return _described(stall, (), None, Cause.UNKNOWN, f"Nobody can be named{unheard if stall.unheard else ''}.")


def _suspicion(stall: Stalled, ranks: tuple[int, ...], b: Blame, cause: Cause) -> Suspicion:
    does = _LEFT[b.side] if _has_ended(stall, b) else _STANDS if b.stands else _DOES[b.side]
    does = does.format(operation=_operation(b), communicator=_where(b.communicator), instead=b.instead)
    waiting = f"; waiting for it: {', '.join(map(str, b.waiting[:TOLD_RANKS]))}" if b.waiting else ""
    witnesses = _stopped(stall, ranks) + _silent(stall, ranks)
    if b.side is Side.NETWORK:
        witnesses += stuck_sends.text(stall.stacks, ranks)
    return _described(stall, ranks, b, cause, f"{_named(ranks)} {does}{waiting}.{witnesses}")


def _has_ended(stall: Stalled, b: Blame) -> bool:
    return b.side in _LEFT and stall.silences.get(b.rank) is Silence.ENDED


def _stopped(stall: Stalled, ranks: tuple[int, ...]) -> str:
    """What the kernel tells of a process is the reason where somebody has stopped it."""
    found = [rank for rank in ranks if rank in stall.stacks and stall.stacks[rank].state in _HALTED]
    return f" {_named(tuple(found))}: its process is {stall.stacks[found[0]].state}." if len(found) == 1 else ""


def _silent(stall: Stalled, ranks: tuple[int, ...]) -> str:
    silence = stall.silences.get(ranks[0]) if len(ranks) == 1 else None
    return f" {_SILENT[silence]}." if silence else ""


def _witnesses(stall: Stalled, ranks: tuple[int, ...]) -> Iterator[Evidence]:
    for rank in [rank for rank in ranks if rank in stall.stacks][:TOLD_STACKS]:
        stack = stall.stacks[rank]
        state = f" ({stack.state})" if stack.state else ""
        yield Evidence(signal="stack", text=f"Rank {rank}{state}, {stack.source}\n{stack.text}".strip(), unit="lines")
        if stack.recorder:
            text = f"Rank {rank}, PyTorch's flight recorder\n{stack.recorder}"
            yield Evidence(signal="flight_recorder", text=text, unit="lines")
    if stall.ras:
        yield Evidence(signal="nccl_ras", text=f"NCCL's RAS, of the whole job\n{stall.ras}", unit="lines")


def _described(stall: Stalled, ranks: tuple[int, ...], b: Blame | None, cause: Cause, text: str) -> Suspicion:
    """Who is named for the end of an attempt wakes nobody: whoever runs the job hears of its end from its launcher."""
    advice = _ADVICE[b.side] if b else "Take the Python stacks of all ranks (py-spy dump)."
    died = not (b and b.side is Side.PROGRAM) and (stall.ended or bool(b and _has_ended(stall, b)))
    confidence = 0.95 if b and b.side in _CERTAIN else 0.5
    what = "The attempt has ended" if stall.ended else "Nothing has moved"
    return Suspicion(
        kind=Kind.HANG,
        cause=cause,
        ranks=ranks,
        since_step=stall.step or None,
        effect_ratio=1.0,
        evidence=(Evidence(signal="frontier", text=text, unit="operations"), *_witnesses(stall, ranks)),
        summary=f"{what}{_when(stall)}. {text}{_pause(stall)}",
        advice=_ADVICE_DEAD if died else advice,
        confidence=DIED if died and stall.ended else confidence,
        cost_ratio=math.inf,
        pages=not stall.ended,
    )
