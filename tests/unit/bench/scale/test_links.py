"""The test of links by itself."""

from __future__ import annotations

import numpy as np

from bench.scale import links
from bench.scale.families import Families
from bench.scale.layout import Layout

LAYOUT = Layout(pp=2, dp=8, tp=4)


def test_a_jobs_transfers_are_those_of_its_rows() -> None:
    families = Families(LAYOUT)
    sends = sum(int((f.count > 0).sum()) for f in families.all if f.name in ("forward_send", "backward_send"))

    of = links.Transfers.of(LAYOUT)

    assert np.bincount(of.kinds).tolist() == [sends, 2 * 4, 2 * 4, 2 * 8, 8]
    assert (of.sigma == 0).sum() == 8


def test_noise_alone_is_no_alarm_and_a_link_that_is_much_slower_is_one_in_three_steps() -> None:
    assert links.false_alarms(LAYOUT, 0, 60) == 0
    assert links.found(LAYOUT, 0, 5.0) == links.Found(3, 0)
