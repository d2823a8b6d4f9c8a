"""What is recorded on processors: in every layout each kind of fault, small and large ones, two at once, and clean
jobs; and the processors of jobs that are recorded side by side.

    python -m bench.corpus record FOLDER --jobs 10 --within 540    # what ten jobs at a time can record in 540 s
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from itertools import chain, islice, zip_longest
from pathlib import Path

from bench.corpus.outside import Deed, FromOutside
from megatronapp.core.errors import UsageError
from megatronapp.core.scenario import Fault, FaultKind, HangSide, Scenario
from tests.faults.cases import ALL_LAYOUTS, FROM_STEP, Case, slow, stall
from tests.faults.harness import WORLD

SPARE = 2
"""Processors of a job beside one a rank."""
PIPELINE_OF_FOUR = "PP4 (DP1)"
"""Of which a stage in the middle calls something else: the first collective of the first and the last is that of the
embedding, which they share."""
OF_FOUR = frozenset({"DP4", "DP4 sharded optimizer", "EP2 x DP4", PIPELINE_OF_FOUR})
"""Layouts in which a rank that calls something else does so among four: of two nobody can tell which is wrong."""
OTHER_CALLS = frozenset({FaultKind.SKIP_COLLECTIVE, FaultKind.WRONG_SIZE, FaultKind.WRONG_ORDER})
_TOPOLOGY = Path("/sys/devices/system/cpu")


def planned(first: int, seeds: int) -> Iterator[Case]:
    """For each seed another rank is broken. Each kind of fault comes in all layouts before the next kind does. More
    than a fifth is clean. Nobody dies: gloo ends all ranks over it, and files don't tell who was first."""
    for seed in range(first, first + seeds):
        of_layouts = [_of_layout(name, number, seed) for number, name in enumerate(ALL_LAYOUTS)]
        yield from (case for row in zip_longest(*of_layouts) for case in row if case)


def lanes(jobs: int) -> list[frozenset[int]]:
    """The processors of each of so many jobs, or of fewer where there are not enough: whole cores, one a rank at least.
    A core is left over, for who records. Raises UsageError where there is no room for two."""
    cores = _cores(sorted(os.sched_getaffinity(0)))
    threads = min(map(len, cores))
    of_each = max(WORLD, -(-(WORLD + SPARE) // threads))
    fitting = (len(cores) - 1) // of_each
    if fitting < 2:
        raise UsageError(
            f"two jobs at a time need {2 * of_each + 1} cores, this process has {len(cores)}; record with --jobs 1"
        )
    left = chain(cores)
    return [frozenset(chain(*islice(left, of_each))) for _ in range(min(jobs, fitting))]


def _cores(processors: Sequence[int]) -> list[tuple[int, ...]]:
    """Processors that share a core, together."""
    cores: dict[str, list[int]] = {}
    for each in processors:
        file = _TOPOLOGY / f"cpu{each}" / "topology" / "thread_siblings_list"
        cores.setdefault(file.read_text().strip() if file.exists() else str(each), []).append(each)
    return [tuple(core) for core in cores.values()]


def _of_layout(layout: str, number: int, seed: int) -> list[Case | None]:
    """None: a kind that this layout does not have."""
    rank = (number + seed) % WORLD
    other, next_ = (rank + 2) % WORLD, (rank + 1) % WORLD
    loads = rank if layout.startswith(("DP4", "EP2")) else 0

    def of(what: str, *faults: Fault) -> Case:
        return Case(f"{layout}: {what}, seed {seed}", layout, Scenario(faults=faults))

    def stands(kind: FaultKind, side: HangSide | None = None) -> Case | None:
        if kind in OTHER_CALLS and layout not in OF_FOUR:
            return None
        broken = 1 + rank % 2 if kind in OTHER_CALLS and layout == PIPELINE_OF_FOUR else rank
        fault = Fault(kind=kind, ranks=(broken,), side=side, from_step=FROM_STEP, to_step=FROM_STEP)
        return of(f"{kind}{f' of the {side}' if side else ''} on {broken}", fault)

    def slowed(ratio: float) -> Case:
        return of(f"slow_compute x{ratio} on {rank}", slow(rank, ratio))

    def stalled(kind: FaultKind, culprit: int, seconds: float) -> Case:
        return of(f"{kind} {seconds} s on {culprit}", stall(kind, culprit, seconds))

    two = (slow(rank, 1.4), stall(FaultKind.HOST_STALL, other, 0.15) if number % 2 else slow(other, 1.4))
    return [
        slowed(1.2),
        stands(FaultKind.HANG, HangSide.DEVICE),
        of("clean 1"),
        stalled(FaultKind.HOST_STALL, next_, 0.15),
        stands(FaultKind.SKIP_COLLECTIVE),
        stalled(FaultKind.LATE_LINK, other, 0.06),
        of("clean 2"),
        stands(FaultKind.WRONG_SIZE),
        of(f"two at once on {rank} and {other}", *two),
        stalled(FaultKind.DATA_STALL, loads, 0.15),
        stands(FaultKind.WRONG_ORDER),
        of("clean 3"),
        slowed(2.0),
        stands(FaultKind.HANG, HangSide.HOST),
        of("clean 4"),
        slowed(1.4),
        stalled(FaultKind.HOST_STALL, rank, 0.03),
        FromOutside(f"{layout}: {next_} is stopped, seed {seed}", layout, Scenario(), Deed.STOP, next_),
        stalled(FaultKind.LATE_LINK, next_, 0.02),
        of("clean 5"),
        stalled(FaultKind.DATA_STALL, loads, 0.03),
    ]
