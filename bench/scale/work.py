"""Work: the jobs of a run, in several processes, the longest first, until all are through or the time is up."""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
import time
from collections.abc import Generator, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, ProcessPoolExecutor, wait

from bench.scale import hangs, trials
from bench.scale.hangs import Stall, Stop
from bench.scale.scenarios import Trial, plan
from bench.scale.scoring import Outcome

Unit = Trial | Stop
Result = Outcome | Stall

MESSAGES_COST = 6.0
"""Of a step whose messages are encoded, in steps that go in as a table: measured at 1,024 ranks."""
STOP_COST = 600.0
"""Of a rank that stops, in such steps of as many ranks."""


def cores() -> int:
    """Those that this process may use."""
    return len(os.sched_getaffinity(0))


def played(unit: Unit) -> Result:
    return hangs.stop(unit.world, unit.seed) if isinstance(unit, Stop) else trials.run(unit)


def cost(unit: Unit) -> float:
    """Roughly, in rank-steps."""
    if isinstance(unit, Stop):
        return unit.world * STOP_COST
    planned = plan(unit)
    return unit.world * planned.steps * (1.0 if planned.delivery is None else MESSAGES_COST)


def play(units: Sequence[Unit], processes: int, seconds: float | None = None) -> Generator[tuple[Unit, Result]]:
    """Each as soon as it is through. What is not after so many seconds is left out; so is what is not when the iterator
    is closed. Each process should have a core, and numpy one thread."""
    until = None if seconds is None else time.monotonic() + seconds
    ordered = sorted(units, key=cost, reverse=True)
    if min(processes, len(ordered)) > 1:
        yield from _in_processes(ordered, min(processes, len(ordered)), until)
        return
    for unit in ordered:
        if until is not None and time.monotonic() >= until:
            return
        yield unit, played(unit)


def _in_processes(ordered: Sequence[Unit], processes: int, until: float | None) -> Iterator[tuple[Unit, Result]]:
    pool = ProcessPoolExecutor(processes, multiprocessing.get_context("spawn"), _only_for_the_parent)
    try:
        waited = {pool.submit(played, unit): unit for unit in ordered}
        while waited:
            left = None if until is None else max(0.0, until - time.monotonic())
            done, _ = wait(waited, left, FIRST_COMPLETED)
            if not done:
                return
            for future in done:
                yield waited.pop(future), future.result()
    finally:
        pool.shutdown(wait=False, cancel_futures=True)
        for process in multiprocessing.active_children():
            process.kill()


def _only_for_the_parent() -> None:
    """Signals to the group are the parent's to answer; without it nobody wants the results."""
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
    threading.Thread(target=_end_with_the_parent, daemon=True).start()


def _end_with_the_parent() -> None:
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)
