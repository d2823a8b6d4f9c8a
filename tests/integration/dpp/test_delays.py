"""Random orders with random delays: no step hangs or holds more than its cap. `python -m bench.dpp` runs a thousand."""

from __future__ import annotations

import pytest

from megatronapp.trainer import launch  # noqa: F401  (imported once, before the ranks are forked)
from tests.support.delayed import LANES, assert_delays_change_nothing

pytest.importorskip("megatronapp.rdma", reason="the transport's wheel is not installed: pip install native/rdma")


@pytest.mark.long
@pytest.mark.timeout(300)
@pytest.mark.parametrize("lane", LANES)
def test_random_orders_with_random_delays_change_nothing(lane: str) -> None:
    peaks = assert_delays_change_nothing(lane, steps=40)

    assert len(peaks) == 4
