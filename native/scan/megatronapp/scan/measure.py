"""What a mark costs on this machine: the training thread, with the call from Python, and the resolver."""

from __future__ import annotations

import time
import timeit
from collections.abc import Callable
from pathlib import Path

from megatronapp.scan._native import Recorder

CALLS = 1000
REPEATS = 7
RESOLVING_SECONDS = 0.2
"""Some of the resolver's polls."""
_HOST, _OUTER, _PART = range(3)
_ON_HOST = bytes([1, 0, 0])


def mark_cost_ns(current_stream: Callable[[int], int] | None = None, device_index: int = 0) -> dict[str, float]:
    """Nanoseconds of the calling thread, the best of a few rounds, by what is recorded.

    "host mark"; "begin and end" of a span; "span under full", a border that ends one part of a layer and begins the
    next. With `current_stream` (see Recorder) the latter two, and "stream mark", are of a GPU's stream.
    """
    recorder = Recorder(_ON_HOST, bytes(3), current_stream, device_index)
    host = Recorder(_ON_HOST, bytes(3), None, 0, 4096)

    def pair() -> None:
        recorder.begin(_OUTER)
        recorder.end()

    def border() -> None:
        recorder.switch(1, 0, _PART, -1)

    costs = {"host mark": _best_ns(host, host.mark)}
    if current_stream is not None:
        costs["stream mark"] = _best_ns(recorder, recorder.mark)
    costs["begin and end"] = _best_ns(recorder, pair)
    costs["span under full"] = _best_ns(recorder, border, lambda: recorder.begin(_PART))
    for used in (recorder, host):
        used.close(1.0)
    return costs


def resolving_cost_ns(current_stream: Callable[[int], int] | None = None, device_index: int = 0) -> float:
    """Nanoseconds of the resolver's thread for one mark: its time from the device, its part of a row in the ring."""
    before = _threads()
    recorder = Recorder(_ON_HOST, bytes(3), current_stream, device_index)
    (resolver,) = _threads() - before
    for _ in range(REPEATS * CALLS // 2):
        recorder.begin(_OUTER)
        recorder.end()
    began_ns = _processor_ns(resolver)
    recorder.end_step((1,))
    time.sleep(RESOLVING_SECONDS)
    cost_ns = _processor_ns(resolver) - began_ns
    recorder.close(1.0)
    return cost_ns / (REPEATS * CALLS)


def _threads() -> set[Path]:
    return set(Path("/proc/self/task").iterdir())


def _processor_ns(thread: Path) -> int:
    return int((thread / "schedstat").read_text().split()[0])


def _best_ns(recorder: Recorder, call: Callable[[], object], before: Callable[[], object] = lambda: None) -> float:
    rounds = []
    for number in range(REPEATS):
        before()
        rounds.append(timeit.timeit(call, number=CALLS) / CALLS * 1e9)
        recorder.end_step((number,))
    return min(rounds)
