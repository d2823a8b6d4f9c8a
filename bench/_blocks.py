"""Modes compared within one training run: steps in interleaved blocks, and what they differ by."""

from __future__ import annotations

import argparse
import json
import math
import random
import statistics
import warnings
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from bench._model import COMMON, PRESETS

BLOCK = 10
Z95 = statistics.NormalDist().inv_cdf(0.975)


@dataclass(frozen=True)
class Blocks:
    """Each round has one block of each mode, in an order drawn for the round: alike on all ranks, and no mode always
    follows the same other one, whose heat or memory it would inherit."""

    modes: tuple[str, ...]
    """The others are compared with the first."""
    settling: int
    """First steps of a block, which are not counted."""
    on_demand: tuple[str, ...] = ()
    """Modes that run only where they are asked for."""
    length: int = BLOCK
    """Counted steps of a block."""

    def iterations(self, steps: int) -> int:
        """Of a run that counts at least so many steps of each mode."""
        return self.steps(max(math.ceil(steps / self.length), 2)) + 1

    def steps(self, rounds: int) -> int:
        """Of so many rounds, counted or not."""
        return rounds * len(self.modes) * (self.length + self.settling)

    def mode_of(self, step: int) -> tuple[str, int, bool]:
        """(mode, round, counted) of a step, which counts from 1."""
        block, position = divmod(step - 1, self.length + self.settling)
        turn, place = divmod(block, len(self.modes))
        order = random.Random(turn).sample(self.modes, len(self.modes))
        return order[place], turn, position >= self.settling


class Timings:
    """Step times by mode and round."""

    def __init__(self, blocks: Blocks) -> None:
        self._blocks = blocks
        self._seconds: dict[tuple[str, int], list[float]] = defaultdict(list)

    def add(self, step: int, seconds: float) -> None:
        mode, turn, counted = self._blocks.mode_of(step)
        if counted:
            self._seconds[mode, turn].append(seconds)

    def usual_seconds(self) -> float:
        """Of a step of the first mode: the mean of its blocks' medians."""
        first = self._blocks.modes[0]
        return statistics.mean(statistics.median(self._seconds[first, turn]) for turn in self._turns())

    def against_first(self, mode: str) -> dict[str, Any]:
        """The mean paired difference of block medians to the first mode's, as a share of its steps, with its 95 %
        interval (Student's t)."""
        median = {key: statistics.median(values) for key, values in self._seconds.items()}
        first, usual = self._blocks.modes[0], self.usual_seconds()
        mean, half = _interval95([(median[mode, turn] - median[first, turn]) / usual for turn in self._turns()])
        return {
            "longer_ratio": round(mean, 5),
            "interval_95": [round(mean - half, 5), round(mean + half, 5)],
            "steps": sum(len(self._seconds[mode, turn]) for turn in self._turns()),
        }

    def _turns(self) -> list[int]:
        return sorted({turn for _, turn in self._seconds})


def _interval95(values: Sequence[float]) -> tuple[float, float]:
    """Mean and half width; Student's quantile from the normal one by the first terms of its expansion in 1/n."""
    n = len(values) - 1
    t = Z95 + (Z95**3 + Z95) / (4 * n) + (5 * Z95**5 + 16 * Z95**3 + 3 * Z95) / (96 * n * n)
    return statistics.mean(values), t * statistics.stdev(values) / math.sqrt(len(values))


def device_name(device: Any) -> str:
    """Of a torch.device."""
    import torch

    return torch.cuda.get_device_name(device) if device.type == "cuda" else "cpu"


def main(
    name: str,
    description: str | None,
    blocks: Blocks,
    run: Callable[[Sequence[str], Blocks], dict[str, Any] | None],
    argv: Sequence[str] | None = None,
) -> int:
    """`run` trains with the flags that it is handed, unknown ones among them, and with the modes asked for; it returns
    the first rank's report."""
    parser = argparse.ArgumentParser(prog=f"python -m bench.{name}", description=description)
    parser.add_argument("--preset", choices=tuple(PRESETS), default="tiny")
    parser.add_argument("--steps", type=int, default=100, help="counted steps of each mode, in blocks of 10")
    first, *others = blocks.modes
    choices = (*others, *blocks.on_demand)
    parser.add_argument("--modes", nargs="+", choices=choices, default=others, help=f"compared with {first}")
    options, flags = parser.parse_known_args(argv)
    blocks = replace(blocks, modes=(first, *options.modes))
    warnings.filterwarnings("ignore")
    iterations = blocks.iterations(options.steps)
    report = run([*PRESETS[options.preset].split(), *COMMON.split(), *flags, f"--train-iters={iterations}"], blocks)
    if report is not None:
        print(json.dumps(report, indent=2), flush=True)
    return 0
