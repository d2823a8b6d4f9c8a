from collections.abc import Callable

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from megatronapp.trainer.plugins.faults import compute
from megatronapp.trainer.plugins.faults.compute import CpuSlowCompute


class Clock:
    """CPU time that stands still but for the work that the test or a product does."""

    def __init__(self, product_ns: int) -> None:
        self.now_ns = 0
        self.product_ns = product_ns

    def thread_time_ns(self) -> int:
        return self.now_ns

    def multiply(self, *_: torch.Tensor, out: torch.Tensor) -> None:
        self.now_ns += self.product_ns


@pytest.fixture
def clock_of(monkeypatch: pytest.MonkeyPatch) -> Callable[[int], Clock]:
    def make(product_ns: int) -> Clock:
        clock = Clock(product_ns)
        monkeypatch.setattr(compute, "time", clock)
        monkeypatch.setattr(compute.torch, "mm", clock.multiply)
        return clock

    return make


def one_pass(slow: CpuSlowCompute, clock: Clock, base_ns: int) -> int:
    """Injected work of one pass, in ns."""
    slow.start("forward-compute")
    clock.now_ns += base_ns
    before = clock.now_ns
    slow.stop("forward-compute")
    return clock.now_ns - before


def test_overshoot_is_carried_to_the_next_pass(clock_of: Callable[[int], Clock]) -> None:
    clock, slow = clock_of(10), CpuSlowCompute()
    slow.extra = 0.05

    assert [one_pass(slow, clock, 100) for _ in range(4)] == [10, 0, 10, 0]


@given(bases=st.lists(st.integers(0, 5000), max_size=30), extra=st.floats(0.01, 3), product=st.integers(1, 2000))
def test_the_sum_is_right_within_one_product(bases: list[int], extra: float, product: int) -> None:
    with pytest.MonkeyPatch.context() as patch:
        clock, slow = Clock(product), CpuSlowCompute()
        patch.setattr(compute, "time", clock)
        patch.setattr(compute.torch, "mm", clock.multiply)
        slow.extra = extra

        injected = sum(one_pass(slow, clock, base) for base in bases)

    assert 0 <= injected - sum(bases) * extra + 1e-6 <= product + 1e-5


def test_without_a_fault_nothing_is_done(clock_of: Callable[[int], Clock]) -> None:
    clock, slow = clock_of(10), CpuSlowCompute()

    assert one_pass(slow, clock, 1000) == 0


def test_only_compute_is_slowed(clock_of: Callable[[int], Clock]) -> None:
    clock, slow = clock_of(10), CpuSlowCompute()
    slow.extra = 1.0

    slow.start("forward-recv")
    clock.now_ns += 100
    slow.stop("forward-recv")

    assert clock.now_ns == 100
