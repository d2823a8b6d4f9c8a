"""The timebase of a GPU rank: pooled CUDA events on the current stream, placed on the host's clock afterwards."""

from __future__ import annotations

from collections import deque
from typing import NamedTuple

import numpy as np
import torch

from megatronapp.trainer.plugins.scan.clock import cpu_ns, now_ns
from megatronapp.trainer.plugins.scan.host_line import Bracket, HostLine, Placed
from megatronapp.trainer.plugins.scan.recorder import Mark, Times

FIRST_EVENTS = 4096
BRACKETS = 5
REFERENCE_AGE_NS = 1_000_000_000
"""A reference costs the host some hundred microseconds; for a second the line's slope places what comes as well."""


class _Reference(NamedTuple):
    """An event on a stream of its own, where it stands on the host's clock, and when it was taken."""

    event: torch.cuda.Event
    placed: Placed
    taken_ns: int

    def host_ns_of(self, event: torch.cuda.Event) -> int:
        return self.placed.after(round(self.event.elapsed_time(event) * 1e6))


class CudaTimebase:
    """A mark is (host time, event), or (host time, CPU time) for spans of the host.

    An event's time is float32 milliseconds after a reference, so the reference is never old (0.06 us of rounding after
    1 s).
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._pool = deque(_new_event() for _ in range(FIRST_EVENTS))
        self._stream = torch.cuda.Stream(device, priority=-1)
        self._line = HostLine()
        self._reference: _Reference | None = None
        self._device_ns = 0

    def mark(self) -> Mark:
        try:
            event = self._pool.popleft()
        except IndexError:
            event = _new_event()
        event.record()
        return now_ns(), event

    @staticmethod
    def host() -> Mark:
        return now_ns(), cpu_ns()

    @staticmethod
    def done(mark: Mark) -> bool:
        event = mark[1]
        return not isinstance(event, torch.cuda.Event) or event.query()

    def resolve(self, rows: list[tuple[Mark, Mark, Mark]]) -> Times:
        """Times of rows whose marks are done; their events go back into the pool."""
        reference = self._recent_reference()
        marks = [mark for row in rows for mark in row]
        events = {id(mark): mark[1] for mark in marks if isinstance(mark[1], torch.cuda.Event)}
        after = {key: reference.host_ns_of(event) for key, event in events.items()}
        times = np.array([after.get(id(mark), mark[0]) for mark in marks], np.int64).reshape(-1, 3)
        streamed = np.array([id(begin) in after for _, begin, _ in rows], bool)
        cpu = np.array([0 if on else end[1] - begin[1] for on, (_, begin, end) in zip(streamed, rows, strict=True)])
        host = np.array([issue[0] for issue, _, _ in rows], np.int64)
        self._pool.extend({id(event): event for event in events.values()}.values())
        return Times(
            issue=times[:, 0],
            begin=times[:, 1],
            end=times[:, 2],
            cpu=cpu.astype(np.int64),
            enqueue=np.where(streamed, host, 0),
            behind=np.where(streamed, times[:, 2] - np.array([end[0] for _, _, end in rows], np.int64), 0),
            reference_ns=reference.placed.host_ns,
            reference_error_ns=reference.placed.error_ns,
        )

    def _recent_reference(self) -> _Reference:
        last = self._reference
        if last is not None and now_ns() - last.taken_ns < REFERENCE_AGE_NS:
            return last
        brackets = [self._bracket() for _ in range(BRACKETS)]
        before, after, event = min(brackets, key=lambda bracket: bracket[1] - bracket[0])
        if last is not None:
            self._device_ns += round(last.event.elapsed_time(event) * 1e6)
        self._reference = _Reference(event, self._line.place(Bracket(self._device_ns, before, after)), after)
        return self._reference

    def _bracket(self) -> tuple[int, int, torch.cuda.Event]:
        event = _new_event()
        before = now_ns()
        event.record(self._stream)
        event.synchronize()
        return before, now_ns(), event


def _new_event() -> torch.cuda.Event:
    return torch.cuda.Event(enable_timing=True)
