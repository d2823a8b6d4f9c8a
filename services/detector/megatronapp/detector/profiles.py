"""What is special about each kind of device, as values: rules read them, and know no device.

Noise is how much each signal varies before a job has shown its own.

GPU: a worker's step varies by 0.33 to 0.64 % once its work is known (measured on two production traces); healthy GPUs
of one job differ by 0.4 %, of a fleet by 8 % (Sinha et al., SC'22). CPU: the thread CPU time of a step varies by 5 to
12 % on a host that others use too; caches and simultaneous multithreading make whole percents of constant offset.
What CPU ranks spend in wall time alone is as much their neighbours' doing, so only large effects count there. How fast
a host launches wavers by tens of percent (measured on a host that others share) before a job has shown how much.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from megatronapp.detector.signals.launching import BLUR
from megatronapp.detector.statistics.monitor import WARM_UP
from megatronapp.detector.statistics.noise import Noise
from megatronapp.detector.steps import RankTable
from megatronapp.v1 import trace_pb2

NEVER = math.inf
SLOW_SAVE = math.log(1.5)
"""Storage that others use too makes a write half as long again without a fault."""
RARE = frozenset({"checkpoint", "job_checkpoint", "expert_imbalance"})
"""Judged only at saves, or only in jobs with experts: they take no share of every step's false alarms."""

_GPU_NOISE: dict[str, Noise] = {
    "compute_effect": Noise(floor=0.0033, prior=0.01, clip=10, allowance=0.05, smallest=0.02, peers=True, wanders=True),
    "own_history": Noise(floor=0.005, prior=0.01, clip=10, allowance=NEVER, smallest=0.02, wanders=True),
    "optimizer": Noise(floor=0.01, prior=0.02, clip=8, allowance=0.10, smallest=0.02),
    "job_compute": Noise(floor=0.01, prior=0.02, clip=8, allowance=NEVER, smallest=0.05),
    "host_gap": Noise(floor=0.01, prior=0.03, clip=6, allowance=0.05, smallest=0.02, bursts=True),
    "data_wait": Noise(floor=0.01, prior=0.03, clip=6, allowance=0.05, smallest=0.02, bursts=True),
    "garbage_collection": Noise(floor=0.01, prior=0.03, clip=6, allowance=0.05, smallest=0.02, bursts=True),
    "sync_delay": Noise(floor=0.01, prior=0.03, clip=6, allowance=0.05, smallest=0.02, bursts=True),
    "launching": Noise(floor=0.03, prior=0.20, clip=4, allowance=0.50, smallest=BLUR),
    "wait": Noise(floor=0.01, prior=0.02, clip=8, allowance=NEVER, smallest=0.02, wanders=True),
    "transfer": Noise(floor=0.05, prior=0.10, clip=8, allowance=NEVER, smallest=0.10, together=True),
    "checkpoint": Noise(floor=0.20, prior=0.40, clip=6, allowance=SLOW_SAVE, smallest=SLOW_SAVE),
    "job_checkpoint": Noise(floor=0.20, prior=0.40, clip=6, allowance=SLOW_SAVE, smallest=SLOW_SAVE),
    "stage_imbalance": Noise(floor=0.02, prior=0.02, clip=4, allowance=0.05, smallest=0.05, changes=False),
    "sequence_imbalance": Noise(floor=0.02, prior=0.02, clip=4, allowance=0.05, smallest=0.05, changes=False),
    "expert_imbalance": Noise(floor=0.02, prior=0.02, clip=4, allowance=0.05, smallest=0.05, changes=False),
}

_CPU_NOISE: dict[str, Noise] = {
    "compute_effect": Noise(floor=0.05, prior=0.10, clip=4, allowance=0.10, smallest=0.08),
    "own_history": Noise(floor=0.05, prior=0.10, clip=4, allowance=NEVER, smallest=0.08),
    "optimizer": Noise(floor=0.10, prior=0.20, clip=4, allowance=0.30, smallest=0.08),
    "job_compute": Noise(floor=0.05, prior=0.10, clip=4, allowance=NEVER, smallest=0.50),
    "host_gap": Noise(floor=0.05, prior=0.08, clip=4, allowance=0.15, smallest=0.10, bursts=True),
    "data_wait": Noise(floor=0.02, prior=0.05, clip=4, allowance=0.15, smallest=0.05, bursts=True),
    "garbage_collection": Noise(floor=0.02, prior=0.05, clip=4, allowance=0.10, smallest=0.05, bursts=True),
    "preempted": Noise(floor=0.10, prior=0.30, clip=4, allowance=NEVER, smallest=1.00, bursts=True),
    "sync_delay": Noise(floor=0.02, prior=0.05, clip=4, allowance=0.15, smallest=0.05, bursts=True),
    "wait": Noise(floor=0.10, prior=0.20, clip=4, allowance=NEVER, smallest=1.00, bursts=True),
    "send_delay": Noise(floor=0.03, prior=0.05, clip=4, allowance=0.25, smallest=0.10, bursts=True),
    "checkpoint": Noise(floor=0.50, prior=0.50, clip=6, allowance=SLOW_SAVE, smallest=SLOW_SAVE),
    "job_checkpoint": Noise(floor=0.50, prior=0.50, clip=6, allowance=SLOW_SAVE, smallest=SLOW_SAVE),
    "stage_imbalance": Noise(floor=0.05, prior=0.10, clip=4, allowance=0.10, smallest=0.05, changes=False),
    "sequence_imbalance": Noise(floor=0.05, prior=0.10, clip=4, allowance=0.05, smallest=0.05, changes=False),
    "expert_imbalance": Noise(floor=0.05, prior=0.10, clip=4, allowance=0.05, smallest=0.05, changes=False),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class PagePatience:
    """Slow steps, and seconds, before a verdict on a rank's speed pages."""

    steps: int
    passing_ratio: float
    """Undisturbed devices are slower by so much for some steps now and then."""
    passing_steps: int
    """So many steps where the effect may be one of these."""
    wall_steps: int
    """Of what is measured in wall time alone."""
    early_steps: int
    """At least so many where the rank was slow before it had a history."""
    seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceProfile:
    noise: Mapping[str, Noise]
    """By signal: those that this kind of device has."""
    seconds_between_false_alarms: float
    """Of a whole job, within judge.STEPS_BETWEEN_FALSE_ALARMS: whoever is woken counts days, not steps."""
    patience: PagePatience
    warms_up: bool
    """An attempt's first steps are unlike the others: kernels are chosen, memory is allocated."""
    wall_time_tells: bool
    """What a rank takes in wall time is its own doing, and not that of whoever shares its host."""
    link_is_known: bool
    """What carries a message follows from where its ends are: NVLink within a node, a network card between nodes."""
    shadow: float
    """Share of the strongest slowness that another rank's must reach to page beside it; 0: any. Who waits for a slow
    rank idles, and where idling slows it computes slower, too; what it sends may wait for a late one."""
    idle_effect: float
    """log(effect_ratio) that idleness alone may reach."""
    optimizer_tells_memory: bool
    """The optimizer is bound by the device's own memory, the passes by its arithmetic."""
    thread_computes: bool
    """The training thread computes itself, so that its use of a processor tells a busy rank from one that stands."""


GPU = DeviceProfile(
    noise=_GPU_NOISE,
    seconds_between_false_alarms=365 * 86_400.0,
    # Two slow steps may be outliers. An H200 that nobody disturbed computed 2 % slower for ten steps now and then.
    patience=PagePatience(steps=3, passing_ratio=1.02, passing_steps=20, wall_steps=3, early_steps=0, seconds=0.0),
    warms_up=True,
    wall_time_tells=True,
    link_is_known=True,
    shadow=0.0,
    idle_effect=0.0,
    optimizer_tells_memory=True,
    thread_computes=False,
)
CPU = DeviceProfile(
    noise=_CPU_NOISE,
    seconds_between_false_alarms=0.0,  # the least steps: such jobs last for minutes
    # A burst of other load slows a rank for some steps, or moments, however many steps these are; before a rank has a
    # history only what lasts as long as one takes counts. A message ends when its receiver takes it, and that one may
    # lack a processor for seconds.
    patience=PagePatience(steps=6, passing_ratio=1.0, passing_steps=6, wall_steps=12, early_steps=WARM_UP, seconds=2.0),
    warms_up=False,
    wall_time_tells=False,
    link_is_known=False,
    shadow=0.5,
    # On one host ranks that idled before each pass took 35 % more CPU time for it; in 88 jobs with a late rank that
    # were recorded on other hosts (bench.corpus) 36 % at most.
    idle_effect=math.log(1.4),
    optimizer_tells_memory=False,
    thread_computes=True,
)


def of_device(device: int) -> DeviceProfile:
    """Of a Hello's device; one that is not told is a GPU."""
    return CPU if device == trace_pb2.DEVICE_CPU else GPU


def of_ranks(ranks: RankTable) -> DeviceProfile:
    """Of a job: that of its least exact devices."""
    return CPU if ranks.on_cpu.any() else GPU
