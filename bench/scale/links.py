"""Links: the test of their transfers by itself, without the rest of the engine, so that 10⁸ rank-steps take minutes.
How often noise alone raises an alarm, and in how many steps a link that is slower does. Seeds are those for tuning.

python -m bench.scale.links [--ranks 4096] [--rank-steps 1e8] [--steps 60] [--trials 40] [--first 0] [--memory 0.9]
python -m bench.scale.links --ranks 4 --layouts plain --rank-steps 144e3 --steps 600 --memory 0.95
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

os.environ.setdefault("OMP_NUM_THREADS", "1")

import numpy as np

from bench.scale.intervals import poisson
from bench.scale.layout import Layout
from bench.scale.noise import Beside
from bench.scale.scenarios import LARGE, LAYOUTS, layouts
from bench.scale.seeds import generator, seeds
from megatronapp.detector import profiles
from megatronapp.detector.judge import log_steps_between_false_alarms, monitor_of
from megatronapp.detector.statistics.monitor import Monitor
from megatronapp.detector.steps import Floats, Ints

STEP_SECONDS = 30.0
"""Of a large job: how sure an alarm must be depends on it."""
ONSET, WINDOW = 40, 60
"""Step from which a link is slower, and steps from there on in which it may be found."""
RATIOS = (1.2, 1.3, 1.5, 2.0, 5.0)
MESSAGES, REDUCE, GATHER, TENSOR, NORM = range(5)


class Found(NamedTuple):
    steps: int | None
    """From the onset to its alarm, None: none."""
    others: int
    """Alarms on other transfers."""


@dataclass(frozen=True)
class Transfers:
    """A job's: their kinds, and how much each varies (log, standard deviation)."""

    kinds: Ints
    sigma: Floats

    @classmethod
    def of(cls, layout: Layout) -> Transfers:
        """The agreement on the gradient's norm carries eight bytes, and takes the same at all times."""
        replicas = layout.pp * layout.tp if layout.dp > 1 else 0
        counts = {
            MESSAGES: 2 * (layout.world - layout.world // layout.pp),
            REDUCE: replicas,
            GATHER: replicas,
            TENSOR: layout.pp * layout.dp if layout.tp > 1 else 0,
            NORM: layout.dp if layout.pp * layout.tp > 1 else 0,
        }
        kinds = np.repeat(list(counts), list(counts.values()))
        return cls(kinds, np.where(kinds == NORM, 0.0, Beside().transfer))


def monitor(layout: Layout, of: Transfers) -> Monitor:
    steps = log_steps_between_false_alarms(profiles.GPU, layout.world, STEP_SECONDS)
    return monitor_of(profiles.GPU, "transfer", max(layout.world, len(of.kinds)), steps)


class Varying:
    """What each transfer's time does from step to step: a first-order autoregression with this memory."""

    def __init__(self, of: Transfers, random: np.random.Generator, memory: float) -> None:
        self._of, self._random, self._memory = of, random, memory
        self._state = self._fresh()

    def _fresh(self) -> Floats:
        return self._random.standard_normal(len(self._of.kinds))

    def observe(self, watching: Monitor, step: int, slow: Floats | float) -> None:
        values = self._of.sigma * self._state + slow
        watching.observe(step, np.arange(len(values)), values, self._of.kinds)
        self._state = self._memory * self._state + np.sqrt(1 - self._memory**2) * self._fresh()


def false_alarms(layout: Layout, seed: int, steps: int, memory: float = 0.0) -> int:
    """Transfers of a healthy job that are ever alarmed."""
    of, random = Transfers.of(layout), generator(seed, "links", layout.name)
    watching, ever = monitor(layout, of), np.zeros(len(of.kinds), bool)
    varying = Varying(of, random, memory)
    for step in range(1, steps + 1):
        varying.observe(watching, step, 0.0)
        ever |= watching.alarmed
    return int(ever.sum())


def found(layout: Layout, seed: int, ratio: float, memory: float = 0.0) -> Found:
    """One transfer that varies is so much slower from ONSET on."""
    of, random = Transfers.of(layout), generator(seed, "links", layout.name, ratio)
    watching, slow = monitor(layout, of), np.zeros(len(of.kinds))
    which = int(random.choice(np.flatnonzero(of.sigma)))
    varying = Varying(of, random, memory)
    for step in range(1, ONSET + WINDOW):
        slow[which] = np.log(ratio) if step >= ONSET else 0.0
        varying.observe(watching, step, slow)
        if watching.alarmed[which]:
            return Found(step - ONSET + 1, int(watching.alarmed.sum()) - 1)
    return Found(None, int(watching.alarmed.sum()))


def main(argv: Sequence[str] | None = None) -> int:
    known = argparse.ArgumentParser(prog="python -m bench.scale.links", description=__doc__)
    known.add_argument("--ranks", type=int, default=4096)
    known.add_argument("--rank-steps", type=float, default=1e8, help="of healthy jobs, at least")
    known.add_argument("--steps", type=int, default=60, help="of each healthy job")
    known.add_argument("--trials", type=int, default=40, help="of each ratio")
    known.add_argument("--first", type=int, default=0, help="seeds to leave out; default 0")
    known.add_argument("--memory", type=float, default=0.0, help="correlation of a transfer's neighbouring steps")
    known.add_argument("--layouts", choices=sorted(LAYOUTS), default=LARGE, help="plain: of a few ranks, too")
    wanted = known.parse_args(argv)
    shapes = layouts(wanted.ranks, kind=wanted.layouts)
    jobs = max(1, int(np.ceil(wanted.rank_steps / wanted.ranks / wanted.steps)))
    healthy = seeds(jobs, first=wanted.first)
    alarms = [false_alarms(shapes[seed % len(shapes)], seed, wanted.steps, wanted.memory) for seed in healthy]
    rank_steps = jobs * wanted.steps * wanted.ranks
    print(
        f"{jobs} healthy jobs of {wanted.ranks} ranks, {wanted.steps} steps each, {rank_steps:.3g} rank-steps: "
        f"{sum(alarms)} alarms, at most {1e8 * poisson(sum(alarms))[1] / rank_steps:.2g} in 10⁸",
        flush=True,
    )
    for ratio in RATIOS:
        chosen = seeds(wanted.trials, first=wanted.first)
        tried = [found(shapes[seed % len(shapes)], seed, ratio, wanted.memory) for seed in chosen]
        steps = [each.steps for each in tried if each.steps is not None]
        median = f"median {np.median(steps):.0f} steps" if steps else "never"
        others = sum(each.others for each in tried)
        print(f"× {ratio:g}: found {len(steps)} of {len(tried)}, {median}, {others} other alarms", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
