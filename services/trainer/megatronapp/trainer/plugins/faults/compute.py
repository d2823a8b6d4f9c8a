"""slow_compute: extra real work inside each forward and backward pass, in the same thread or on the same stream.

A loop with feedback: what a pass took times the wanted extra is added to a debt, matrix products pay it off, and what
they really took is taken from it. What a product overshoots is carried to the next pass, so the sum is right.
"""

from __future__ import annotations

import time
from collections import deque
from dataclasses import dataclass
from typing import Protocol

import torch

COMPUTE_TIMERS = frozenset({"forward-compute", "backward-compute"})
CPU_PRODUCT = 48
"""Rows of a CPU product's matrices: some ten microseconds, and small enough to leave the model its cache."""
CUDA_PRODUCT = 2048
"""Rows of a GPU product's matrices: some ten microseconds, and large enough to fill the device."""
CALIBRATION_PRODUCTS = 50


class SlowCompute(Protocol):
    """A TimerListener whose `extra` is the wanted extra work over the base work; 0: none."""

    extra: float

    def start(self, name: str) -> None: ...

    def stop(self, name: str) -> None: ...


def slow_compute(device: torch.device) -> SlowCompute:
    return CudaSlowCompute(device) if device.type == "cuda" else CpuSlowCompute()


class CpuSlowCompute:
    """Base and extra work are measured in CPU time of the calling thread."""

    def __init__(self) -> None:
        self.extra = 0.0
        self._debt_ns = 0.0
        self._start_ns = 0
        self._matrix = torch.eye(CPU_PRODUCT)
        self._product = torch.empty_like(self._matrix)

    def start(self, name: str) -> None:
        if name in COMPUTE_TIMERS:
            self._start_ns = time.thread_time_ns()

    def stop(self, name: str) -> None:
        if name not in COMPUTE_TIMERS or not self.extra:
            return
        end_ns = time.thread_time_ns()
        self._debt_ns += (end_ns - self._start_ns) * self.extra
        self._debt_ns -= self._work(end_ns, self._debt_ns)

    def _work(self, begin_ns: int, wanted_ns: float) -> int:
        """Multiply until `wanted_ns` have gone by since `begin_ns`; returns what really has, in ns of CPU time."""
        spent_ns = 0
        while spent_ns < wanted_ns:
            torch.mm(self._matrix, self._matrix, out=self._product)
            spent_ns = time.thread_time_ns() - begin_ns
        return spent_ns


@dataclass
class _Stretch:
    """Part of the stream between two events. `expected_ns` stands in the debt until the events have the truth."""

    begin: torch.cuda.Event
    end: torch.cuda.Event
    extra: float = 0.0
    products: int = 0
    name: str = ""
    expected_ns: float = 0.0

    def measured_ns(self) -> float:
        return float(self.begin.elapsed_time(self.end)) * 1e6


class CudaSlowCompute:
    """Base and extra work are measured between events of the compute stream, without waiting for them.

    The times of a pass are known only some passes later. Until then the last known time of that pass stands for it,
    and what was wrong with it goes into the debt.
    """

    def __init__(self, device: torch.device) -> None:
        self.extra = 0.0
        self._debt_ns = 0.0
        self._begin = _event()
        self._open: deque[_Stretch] = deque()
        self._last_ns: dict[str, float] = {}
        self._matrix = torch.eye(CUDA_PRODUCT, device=device, dtype=torch.bfloat16)
        self._product = torch.empty_like(self._matrix)
        self._product_ns = self._calibrate()

    def start(self, name: str) -> None:
        if name in COMPUTE_TIMERS and self.extra:
            self._begin = _event()
            self._begin.record()

    def stop(self, name: str) -> None:
        if name not in COMPUTE_TIMERS or not self.extra:
            return
        self._settle()
        expected = self._last_ns.get(name, 0.0)
        base = _Stretch(self._begin, _event(), extra=self.extra, name=name, expected_ns=expected)
        base.end.record()
        self._open.append(base)
        self._debt_ns += expected * self.extra
        products = int(self._debt_ns / self._product_ns)
        if products > 0:
            self._debt_ns -= products * self._product_ns
            self._open.append(self._multiply(base.end, products))

    def _multiply(self, begin: torch.cuda.Event, products: int) -> _Stretch:
        for _ in range(products):
            torch.mm(self._matrix, self._matrix, out=self._product)
        work = _Stretch(begin, _event(), products=products, expected_ns=products * self._product_ns)
        work.end.record()
        return work

    def _settle(self) -> None:
        """Put measured times in the place of expected ones, as far as the device has come."""
        while self._open and self._open[0].end.query():
            stretch = self._open.popleft()
            measured = stretch.measured_ns()
            if stretch.products:
                self._debt_ns -= measured - stretch.expected_ns
                self._product_ns += 0.2 * (measured / stretch.products - self._product_ns)
            else:
                self._debt_ns += (measured - stretch.expected_ns) * stretch.extra
                self._last_ns[stretch.name] = measured

    def _calibrate(self) -> float:
        """Duration of one product in ns."""
        self._product_ns = 1.0
        begin = _event()
        torch.mm(self._matrix, self._matrix, out=self._product)
        begin.record()
        stretch = self._multiply(begin, CALIBRATION_PRODUCTS)
        stretch.end.synchronize()
        return stretch.measured_ns() / CALIBRATION_PRODUCTS


def _event() -> torch.cuda.Event:
    return torch.cuda.Event(enable_timing=True)
