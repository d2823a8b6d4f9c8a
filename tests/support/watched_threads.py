"""A traced training that watches its rank's threads: whose work needs the interpreter's lock."""

from __future__ import annotations

import threading
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from megatronapp.core.trace.values import Progress
from megatronapp.trainer.plugins.megatrace import MegatracePlugin
from megatronapp.trainer.plugins.scan import ScanPlugin
from tests.support.interpreter_threads import lock_kept, spin_until, threads_called, threads_with_a_state
from tests.support.segment import SegmentReader
from tests.support.training import TINY, train

AUTOGRAD = "pt_autograd"
"""How torch's threads are called that play a device's backward pass, and Python's part of it."""
STEPS = 10
SECONDS_A_STEP = 5.0


@dataclass(frozen=True)
class WatchedThreads:
    """Of one rank."""

    resolvers: int
    """Threads of the native recorder."""
    resolvers_with_a_state: int
    others_with_a_state: tuple[str, ...]
    """Names of threads that have a part in the interpreter, but the main one and torch's autograd."""
    steps_under_the_lock: int
    """Steps that were resolved and written while the training thread kept the lock."""


class WatchedScan(ScanPlugin):
    seen: WatchedThreads

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self._reader = SegmentReader(self._recorder.fd)
        self._resolved = 0

    def step_end(self, step: int, progress: Progress | None) -> None:
        with lock_kept():
            super().step_end(step, progress)
            self._resolved += spin_until(partial(self._reader.ended, step), SECONDS_A_STEP)
        if step == STEPS:
            type(self).seen = _look(self._resolved)


def train_watched(flags: str) -> WatchedThreads:
    """In a rank of `run_forked`."""
    trace = "--trace --trace-interval 1 --continuous-trace-iterations 1 --trace-granularity full --nccl-trace"
    train(f"{TINY} --train-iters {STEPS} {trace} {flags}", plugins=(WatchedScan, MegatracePlugin))
    return WatchedScan.seen


def _look(resolved: int) -> WatchedThreads:
    resolvers, states = threads_called("scan-resolver"), threads_with_a_state()
    others = sorted(map(_name, states - resolvers - {threading.get_native_id()}))
    strangers = tuple(name for name in others if not name.startswith(AUTOGRAD))
    return WatchedThreads(len(resolvers), len(resolvers & states), strangers, resolved)


def _name(thread: int) -> str:
    return Path(f"/proc/self/task/{thread}/comm").read_text().strip()
