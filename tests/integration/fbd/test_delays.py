"""Random delays from the fewest slots up change nothing. `python -m bench.fbd --only delays` runs a thousand steps."""

from __future__ import annotations

import pytest

from megatronapp.trainer import launch  # noqa: F401  (imported once, before the ranks are forked)
from tests.support.delayed_worlds import CASES, assert_delays_change_nothing

pytest.importorskip("megatronapp.rdma", reason="the transport's wheel is not installed: pip install native/rdma")


@pytest.mark.long
@pytest.mark.timeout(500)
@pytest.mark.parametrize("name", CASES)
def test_random_delays_change_nothing(name: str) -> None:
    assert_delays_change_nothing(name, steps=20)
