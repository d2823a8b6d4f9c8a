"""Recorded collectives and sends judged: NCCL Inspector's dumps and metrics, Megatrace's telemetry of network ports."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from megatronapp.core.findings import Cause, Kind
from megatronapp.detector.formats import inspector, inspector_metrics, work_requests
from megatronapp.detector.formats.inspector import Inspected
from megatronapp.detector.formats.inspector_metrics import Gpu
from megatronapp.detector.formats.work_requests import Port
from megatronapp.detector.offline import in_order, without_steps
from megatronapp.detector.report import Job, Report
from megatronapp.detector.rules.base import Suspicion, percent


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


def ports_job(name: str, ports: Sequence[Port]) -> Report:
    """Name the ports that send slowly or not at all, by Megatrace's telemetry, and the ranks that send there."""
    suspicions = [
        Suspicion(
            kind=Kind.HANG if slow.stalled_seconds else Kind.SLOW_LINK,
            cause=Cause.NIC,
            ranks=slow.port.ranks,
            since_step=None,
            effect_ratio=slow.effect_ratio,
            evidence=(),
            summary=f"A send through {slow.port.name} has stalled: {slow.port.outstanding_bytes} bytes are "
            f"outstanding, and the other ports went on for {slow.stalled_seconds:.0f} s."
            if slow.stalled_seconds
            else f"{slow.port.name} sends {percent(slow.effect_ratio)} more slowly than the other ports.",
            advice="Check the card, its cable and its switch port.",
            confidence=0.9,
            page_steps=0,
            cost_ratio=math.inf if slow.stalled_seconds else slow.effect_ratio,
        )
        for slow in work_requests.slow(list(ports))
    ]
    ranks = {rank for port in ports for rank in port.ranks}
    job = Job(name=name, format="Megatrace telemetry", ranks=len(ranks), records=sum(port.sends for port in ports))
    return Report(job=job, findings=in_order(without_steps(name, suspicions)))
