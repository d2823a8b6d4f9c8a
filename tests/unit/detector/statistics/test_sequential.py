from __future__ import annotations

import numpy as np

from megatronapp.detector.statistics.sequential import TAU, WINDOWS, evidence, sums


def test_sums_are_over_the_newest_steps_of_each_window() -> None:
    residuals = np.random.default_rng(0).normal(size=(5, WINDOWS[-1]))

    found = sums(residuals)

    np.testing.assert_allclose(found, np.stack([residuals[:, :steps].sum(axis=1) for steps in WINDOWS], axis=1))


def test_the_evidence_is_that_of_the_start_that_tells_most() -> None:
    of_windows = np.random.default_rng(0).normal(0.0, 20.0, (50, len(WINDOWS)))

    found = evidence(of_windows)

    spread = 1 + WINDOWS * TAU**2
    each = np.where(of_windows > 0, TAU**2 * of_windows**2 / (2 * spread), 0.0) - np.log(spread) / 2
    np.testing.assert_allclose(found, each.max(axis=1))
