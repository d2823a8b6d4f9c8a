"""The test of links by itself."""

from __future__ import annotations

import numpy as np
import pytest

from bench.scale import links
from bench.scale.families import Families
from bench.scale.layout import Layout
from megatronapp.detector import profiles
from megatronapp.detector.statistics.monitor import Monitor
from megatronapp.detector.steps import Floats, Ints

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


def test_transfers_that_wander_keep_their_size_and_follow_themselves() -> None:
    of = links.Transfers.of(LAYOUT)
    varying = links.Varying(of, np.random.default_rng(0), 0.9)
    seen = []

    class Watching(Monitor):
        def observe(self, step: int, items: Ints, values: Floats, kinds: Ints | None = None) -> None:
            seen.append(values[of.sigma > 0])

    for step in range(400):
        varying.observe(Watching(profiles.GPU.noise["transfer"], 10.0), step, 0.0)

    values = np.stack(seen)
    assert values.std() == pytest.approx(of.sigma.max(), rel=0.05)
    assert np.corrcoef(values[:-1].ravel(), values[1:].ravel())[0, 1] == pytest.approx(0.9, abs=0.02)
    assert links.found(LAYOUT, 0, 5.0, 0.9).others == 0
