"""Recorded collectives and sends judged: NCCL Inspector's dumps and metrics, Megatrace's telemetry of network ports."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence

from megatronapp.core.findings import Cause, Kind
from megatronapp.detector.formats import inspector, inspector_metrics, work_requests
from megatronapp.detector.formats.inspector import Inspected
from megatronapp.detector.formats.inspector_metrics import Gpu
from megatronapp.detector.formats.work_requests import Ports, SlowPort
from megatronapp.detector.offline import in_order, without_steps
from megatronapp.detector.report import Job, Report
from megatronapp.detector.rules.base import Suspicion


def inspected_job(name: str, inspected: Inspected) -> Report:
    """Name the ranks that the others wait for in collectives, by NCCL Inspector's dumps."""
    suspicions = [
        Suspicion(
            kind=Kind.UNKNOWN,
            cause=Cause.UNKNOWN,
            ranks=(late.rank,),
            since_step=None,
            effect_ratio=late.cost_ratio,
            evidence=(),
            summary=f"Rank {late.rank} comes last to {late.last_ratio:.0%} of the collectives of {late.communicator}; "
            f"its other members wait {late.waited_seconds:.3f} s in them.",
            advice="Its device or its host is slow: look at the GPU's clocks and the host's load, or trace it.",
            confidence=0.9,
            page_steps=0,
            cost_ratio=late.cost_ratio,
        )
        for late in inspector.late(inspected)
    ]
    job = Job(name=name, format="NCCL Inspector", ranks=len(inspected.ranks), records=inspected.records)
    return Report(job=job, findings=in_order(without_steps(name, suspicions)))


def metrics_job(name: str, times: Mapping[Gpu, Mapping[str, float]]) -> Report:
    """Name the GPU that the others wait for in collectives, by NCCL Inspector's Prometheus text."""
    found = inspector_metrics.waited_for(times)
    suspicions = []
    if found is not None:
        node, gpu = found.gpu
        suspicions.append(
            Suspicion(
                kind=Kind.UNKNOWN,
                cause=Cause.UNKNOWN,
                ranks=(),
                since_step=None,
                effect_ratio=found.ratio,
                evidence=(),
                summary=f"The others are {found.ratio:.1f} times as long in collectives as GPU {gpu} of {node}: "
                "they wait for it.",
                advice="Let NCCL Inspector write JSON for a while, which tells ranks and single operations.",
                confidence=0.5,
                pages=False,
            )
        )
    job = Job(name=name, format="NCCL Inspector metrics", ranks=len(times), records=sum(map(len, times.values())))
    return Report(job=job, findings=in_order(without_steps(name, suspicions)))


def ports_job(name: str, read: Ports) -> Report:
    """Name the ports that send slowly or not at all, by Megatrace's telemetry, and the ranks that send there."""
    found = work_requests.slow(read.ports)
    suspicions = [_slow_port(each, of_job=read.of_job) for each in found if not each.stalled_seconds]
    suspicions += _stalled_sends([each for each in found if each.stalled_seconds], of_job=read.of_job)
    senders = {place for port in read.ports for place in port.places} if read.of_job else read.ports
    records = sum(port.sends for port in read.ports)
    job = Job(name=name, format="Megatrace telemetry", ranks=len(senders), records=records)
    return Report(job=job, findings=in_order(without_steps(name, suspicions)))


def _slow_port(slow: SlowPort, *, of_job: bool) -> Suspicion:
    said = f"A byte takes {slow.effect_ratio:.1f} times as long through {slow.port.name} as through the other ports."
    ranks = slow.port.places if of_job else ()
    return _of_ports(Kind.SLOW_LINK, ranks, slow.effect_ratio, slow.effect_ratio, said)


def _stalled_sends(stalled: Sequence[SlowPort], *, of_job: bool) -> Iterator[Suspicion]:
    """Of each rank, and the rank that it sent to; where both ends of a link have stalled, of the two together."""
    lasts = [each.port.last for each in stalled]
    pairs = {(last.communicator, last.place, last.peer) for last in lasts}
    by_ends = defaultdict[tuple[int, ...], list[SlowPort]](list)
    for each, last in zip(stalled, lasts, strict=True):
        both = last.peer is not None and (last.communicator, last.peer, last.place) in pairs
        ends = sorted({last.place, last.peer}) if last.peer is not None and both else [last.place]
        by_ends[last.communicator, *ends].append(each)
    for (_, *ranks), sends in by_ends.items():
        said = " ".join(_stalled_text(each, of_job=of_job) for each in sends)
        yield _of_ports(Kind.HANG, tuple(ranks) if of_job else (), 1.0, math.inf, said)


def _stalled_text(stalled: SlowPort, *, of_job: bool) -> str:
    port, last = stalled.port, stalled.port.last
    to = f" to rank {last.peer}" if last.peer is not None else ""
    where = "" if of_job else f" of communicator {last.communicator:#x}"
    return (
        f"A send of rank {last.place}{to}{where} through {port.name} has stalled, in operation {last.operation} or "
        f"behind it: {last.outstanding_bytes} bytes are outstanding, and the other ports went on for "
        f"{stalled.stalled_seconds:.0f} s."
    )


def _of_ports(kind: Kind, ranks: tuple[int, ...], effect: float, cost: float, summary: str) -> Suspicion:
    return Suspicion(
        kind=kind,
        cause=Cause.NIC,
        ranks=ranks,
        since_step=None,
        effect_ratio=effect,
        evidence=(),
        summary=summary,
        advice="Check the card, its cable and its switch port.",
        confidence=0.9,
        page_steps=0,
        cost_ratio=cost,
    )
