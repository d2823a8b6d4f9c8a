"""Megatrace's logs of jobs that run: what each host does, when it waits for others, and which rank is slow."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from megatronapp.detector.formats.megatrace_log import RECV, SEND
from tests.unit.detector.formats.megatrace_files import Job, Operation, numbers_of

ORIGIN_NS = 1_700_000_000 * 10**9
Slowness = Callable[[int, float], float]
"""Of a rank and the share of its calls that are behind it: how many times as long as usual it works."""


@dataclass(frozen=True)
class Run:
    job: Job
    steps: int = 40
    slow: Slowness = lambda rank, share: 1.0
    transfer: Mapping[str, float] = field(default_factory=dict)
    """Seconds that each operation of a communicator lasts once all have come."""
    noise: float = 0.02
    ahead: Mapping[int, float] = field(default_factory=dict)
    """Seconds by which a rank's clock is ahead."""
    seed: int = 0


def work_seconds(group: str, operation: str) -> float:
    """Before a call: a layer before each collective of a tensor group; most of a step before the gradients'."""
    if operation == RECV:
        return 0.0005
    if group.startswith("tp"):
        return 0.004
    if group.startswith("dp"):
        return 0.02 if operation == "ReduceScatter" else 0.0005
    return 0.002


def times(run: Run) -> list[list[float]]:
    """When each rank calls each operation of its program, by its own clock: it leaves a collective when all have called
    it, a receive when it was sent, and a send at once."""
    chance = random.Random(run.seed)
    programs = [run.job.program(rank, run.steps) for rank in range(run.job.world)]
    numbers = [numbers_of(program) for program in programs]
    needed: dict[tuple[str, str, int], list[int]] = {}
    for rank, own in enumerate(numbers):
        for number in own:
            needed.setdefault(number, []).append(rank)
    now = [0.0] * run.job.world
    called: list[list[float]] = [[] for _ in programs]
    came: dict[tuple[str, str, int], dict[int, float]] = {}
    moved = True
    while moved:
        moved = False
        for rank, program in enumerate(programs):
            while len(called[rank]) < len(program):
                place = len(called[rank])
                left = _left(run, rank, program[place - 1], numbers[rank][place - 1], needed, came) if place else 0.0
                if left is None:
                    break
                begins = max(now[rank], left)
                spread = max(0.1, chance.gauss(1.0, run.noise))
                now[rank] = begins + work_seconds(*program[place]) * run.slow(rank, place / len(program)) * spread
                called[rank].append(now[rank])
                came.setdefault(numbers[rank][place], {})[rank] = now[rank]
                moved = True
    return [[at + run.ahead.get(rank, 0.0) for at in own] for rank, own in enumerate(called)]


def _left(
    run: Run,
    rank: int,
    operation: Operation,
    number: tuple[str, str, int],
    needed: Mapping[tuple[str, str, int], list[int]],
    came: Mapping[tuple[str, str, int], Mapping[int, float]],
) -> float | None:
    """When a rank leaves what it has called; None: not yet."""
    group, kind = operation
    if kind == SEND:
        return 0.0
    met = (group, SEND, number[2]) if kind == RECV else number
    others = [other for other in needed[met] if kind != RECV or other != rank]
    there = came.get(met, {})
    if not all(other in there for other in others):
        return None
    return max(there[other] for other in others) + run.transfer.get(group, 0.0001)


def write_run(folder: Path, run: Run) -> Sequence[list[float]]:
    """The logs of a run that fell silent at its end."""
    found = times(run)
    for rank, at in enumerate(found):
        counts: dict[str, int] = {}
        lines = []
        for (group, operation), seconds in zip(run.job.program(rank, run.steps), at, strict=True):
            number = counts[group] = counts.get(group, -1) + 1
            ns = ORIGIN_NS + round(seconds * 1e9)
            lines.append(
                f"[save_count 1] [{ns // 10**9}.{ns % 10**9:09}] [Rank {rank}] Fun {operation} Data 4096 "
                f"stream 0x1 opCount {number} groupHash {group}"
            )
        (folder / f"rank_{rank}.log").write_text("\n".join(lines[-10_000:]) + "\n")
    return found
