"""How noisy each signal is on each kind of device before a job has shown its own noise.

GPU: a worker's step varies by 0.33 to 0.64 % once its work is known (measured on two production traces); healthy GPUs
of one job differ by 0.4 %, of a fleet by 8 % (Sinha et al., SC'22). CPU: the thread CPU time of a step varies by 5 to
12 % on a host that others use too; caches and simultaneous multithreading make whole percents of constant offset.
What CPU ranks spend in wall time alone is as much their neighbours' doing, so only large effects count there.
"""

from __future__ import annotations

import math

from megatronapp.detector.statistics.monitor import Noise

NEVER = math.inf
SLOW_SAVE = math.log(1.5)
"""Storage that others use too makes a write half as long again without a fault."""
RARE = frozenset({"checkpoint", "job_checkpoint", "expert_imbalance"})
"""Judged only at saves, or only in jobs with experts: they take no share of every step's false alarms."""

GPU: dict[str, Noise] = {
    "compute_effect": Noise(floor=0.0033, prior=0.01, clip=10, allowance=0.05, smallest=0.02),
    "own_history": Noise(floor=0.005, prior=0.01, clip=10, allowance=NEVER, smallest=0.02),
    "optimizer": Noise(floor=0.01, prior=0.02, clip=8, allowance=0.10, smallest=0.02),
    "job_compute": Noise(floor=0.01, prior=0.02, clip=8, allowance=NEVER, smallest=0.05),
    "host_gap": Noise(floor=0.01, prior=0.03, clip=6, allowance=0.05, smallest=0.02, bursts=True),
    "data_wait": Noise(floor=0.01, prior=0.03, clip=6, allowance=0.05, smallest=0.02, bursts=True),
    "garbage_collection": Noise(floor=0.01, prior=0.03, clip=6, allowance=0.05, smallest=0.02, bursts=True),
    "sync_delay": Noise(floor=0.01, prior=0.03, clip=6, allowance=0.05, smallest=0.02, bursts=True),
    "launching": Noise(floor=0.15, prior=0.20, clip=4, allowance=0.50, smallest=0.30),
    "wait": Noise(floor=0.01, prior=0.02, clip=8, allowance=NEVER, smallest=0.02),
    "transfer": Noise(floor=0.05, prior=0.10, clip=8, allowance=NEVER, smallest=0.10),
    "checkpoint": Noise(floor=0.20, prior=0.40, clip=6, allowance=SLOW_SAVE, smallest=SLOW_SAVE),
    "job_checkpoint": Noise(floor=0.20, prior=0.40, clip=6, allowance=SLOW_SAVE, smallest=SLOW_SAVE),
    "stage_imbalance": Noise(floor=0.02, prior=0.02, clip=4, allowance=0.05, smallest=0.05, changes=False),
    "sequence_imbalance": Noise(floor=0.02, prior=0.02, clip=4, allowance=0.05, smallest=0.05, changes=False),
    "expert_imbalance": Noise(floor=0.02, prior=0.02, clip=4, allowance=0.05, smallest=0.05, changes=False),
}

CPU: dict[str, Noise] = {
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
