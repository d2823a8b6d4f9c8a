"""Modes compared within one training run: steps in interleaved blocks, and what they differ by."""

from __future__ import annotations

import argparse
import gc
import json
import math
import os
import random
import statistics
import time
import warnings
from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import psutil

from bench._model import COMMON, PRESETS

BLOCK = 10
Z95 = statistics.NormalDist().inv_cdf(0.975)
TRIMMED = 0.2
"""Share of the differences that a trimmed mean leaves out at either end."""
FEWEST_ROUNDS = 2
"""An interval needs two differences."""


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
    limit_seconds: float = math.inf
    """Age of the process at which its run ends with the rounds that it has."""

    def over(self) -> bool:
        return process_seconds() > self.limit_seconds

    def iterations(self, steps: int) -> int:
        """Of a run that counts at least so many steps of each mode."""
        return self.steps(max(math.ceil(steps / self.length), FEWEST_ROUNDS)) + 1

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
        self._modes = len(blocks.modes)
        self._seconds: dict[tuple[str, int], list[float]] = defaultdict(list)

    def add(self, step: int, seconds: float) -> None:
        mode, turn, counted = self._blocks.mode_of(step)
        if counted:
            self.add_to(mode, turn, seconds)

    def add_to(self, mode: str, turn: int, seconds: float) -> None:
        """A counted step of this mode's block in this round."""
        self._seconds[mode, turn].append(seconds)

    @property
    def rounds(self) -> int:
        """That are complete; no others count."""
        return len(self._turns())

    def usual_seconds(self) -> float:
        """Of a step of the first mode: the mean of its blocks' medians."""
        first = self._blocks.modes[0]
        return statistics.mean(statistics.median(self._seconds[first, turn]) for turn in self._turns())

    def robust_seconds(self) -> float:
        """The same by the trimmed mean of its blocks' medians."""
        first = self._blocks.modes[0]
        return trimmed_interval95([statistics.median(self._seconds[first, turn]) for turn in self._turns()])[0]

    def against_first(self, mode: str) -> dict[str, Any]:
        """The mean paired difference of block medians to the first mode's, as a share of its steps, with its 95 %
        interval (Student's t)."""
        usual = self.usual_seconds()
        mean, half = interval95([seconds / usual for seconds in self._differences(mode)])
        return {**as_ratio(mean, half), "steps": self._steps(mode)}

    def robustly_against_first(self, mode: str) -> dict[str, Any]:
        """The same, by their trimmed mean, which a stall of the host does not move. `mean_ratio` is that of all counted
        steps, stalls and all."""
        usual = self.robust_seconds()
        mean, half = (seconds / usual for seconds in self.robust_difference(mode))
        of_mode, of_first = (self._mean_seconds(each) for each in (mode, self._blocks.modes[0]))
        return {**as_ratio(mean, half), "mean_ratio": round(of_mode / of_first - 1, 5), "steps": self._steps(mode)}

    def robust_difference(self, mode: str) -> tuple[float, float]:
        """Seconds that a step takes longer than one of the first mode, and half the width of their 95 % interval."""
        return trimmed_interval95(self._differences(mode))

    def _differences(self, mode: str) -> list[float]:
        """Seconds between the block medians of a round, by round."""
        first = self._blocks.modes[0]
        medians = {key: statistics.median(values) for key, values in self._seconds.items()}
        return [medians[mode, turn] - medians[first, turn] for turn in self._turns()]

    def _mean_seconds(self, mode: str) -> float:
        return statistics.mean(seconds for turn in self._turns() for seconds in self._seconds[mode, turn])

    def _steps(self, mode: str) -> int:
        return sum(len(self._seconds[mode, turn]) for turn in self._turns())

    def _turns(self) -> list[int]:
        full = [key for key, values in self._seconds.items() if len(values) == self._blocks.length]
        return sorted(turn for turn, blocks in Counter(turn for _, turn in full).items() if blocks == self._modes)


def as_ratio(mean: float, half: float) -> dict[str, Any]:
    """As a report has it."""
    return {"longer_ratio": round(mean, 5), "interval_95": [round(mean - half, 5), round(mean + half, 5)]}


def interval95(values: Sequence[float]) -> tuple[float, float]:
    """Mean and half width, by Student's t. Two values at least."""
    return statistics.mean(values), _student95(len(values) - 1) * statistics.stdev(values) / math.sqrt(len(values))


def trimmed_interval95(values: Sequence[float]) -> tuple[float, float]:
    """Trimmed mean and half width, from the Winsorised deviation (Yuen, Biometrika 61, 1974). Two values at least."""
    ranked = sorted(values)
    count = len(ranked)
    cut = int(TRIMMED * count)
    kept = ranked[cut : count - cut]
    winsorised = [kept[0]] * cut + kept + [kept[-1]] * cut
    error = statistics.stdev(winsorised) * math.sqrt((count - 1) / (len(kept) * (len(kept) - 1)))
    return statistics.mean(kept), _student95(len(kept) - 1) * error


def _student95(n: int) -> float:
    """Student's quantile for n degrees of freedom, from the normal one by the first terms of its expansion in 1/n."""
    return Z95 + (Z95**3 + Z95) / (4 * n) + (5 * Z95**5 + 16 * Z95**3 + 3 * Z95) / (96 * n * n)


def process_seconds() -> float:
    """Since this process began."""
    return time.time() - psutil.Process().create_time()


def keep_to_own_cores() -> None:
    """This rank's share of the host's, for the calling thread and those that it starts from now on: so ranks do not
    push each other about."""
    rank, ranks = (int(os.environ.get(name, default)) for name, default in (("LOCAL_RANK", 0), ("LOCAL_WORLD_SIZE", 1)))
    cores = sorted(os.sched_getaffinity(0))
    share = len(cores) // ranks
    if share:
        os.sched_setaffinity(0, cores[rank * share : (rank + 1) * share])


def freeze_garbage() -> None:
    """What is there now is not looked through again: a full collection is long and hits any mode. What is made from now
    on is collected as ever."""
    gc.collect()
    gc.freeze()


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
    *,
    limited: bool = False,
) -> int:
    """`run` trains with the flags that it is handed, unknown ones among them, and with the modes asked for; it returns
    the first rank's report. `limited`: it heeds `Blocks.over`."""
    parser = argparse.ArgumentParser(prog=f"python -m bench.{name}", description=description)
    parser.add_argument("--preset", choices=tuple(PRESETS), default="tiny")
    parser.add_argument(
        "--steps", type=int, default=100, help=f"counted steps of each mode, in blocks of {blocks.length}"
    )
    first, *others = blocks.modes
    choices = (*others, *blocks.on_demand)
    parser.add_argument("--modes", nargs="+", choices=choices, default=others, help=f"compared with {first}")
    if limited:
        add_limit(parser)
    options, flags = parser.parse_known_args(argv)
    limit = options.limit_seconds if limited else math.inf
    blocks = replace(blocks, modes=(first, *options.modes), limit_seconds=limit)
    warnings.filterwarnings("ignore")
    iterations = blocks.iterations(options.steps)
    report = run([*PRESETS[options.preset].split(), *COMMON.split(), *flags, f"--train-iters={iterations}"], blocks)
    if report is not None:
        print(json.dumps(report, indent=2), flush=True)
    return 0


def add_limit(parser: argparse.ArgumentParser) -> None:
    text = "end with the rounds that there are when the process is so old"
    parser.add_argument("--limit-seconds", type=float, default=math.inf, metavar="SECONDS", help=text)


def end_without_rounds(rounds: int) -> None:
    """Raises SystemExit where there are too few to tell anything."""
    if rounds < FEWEST_ROUNDS:
        raise SystemExit(
            f"{rounds} complete rounds, and an interval needs {FEWEST_ROUNDS}: give a longer --limit-seconds"
        )
