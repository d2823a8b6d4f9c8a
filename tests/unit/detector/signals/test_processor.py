from __future__ import annotations

import numpy as np
import pytest

from megatronapp.detector.signals.processor import AVERAGED_STEPS, ENOUGH, Measures, ProcessorModel

RANKS = np.arange(4)
HEALTHY = np.ones(4, bool)
STEPS = 2 * ENOUGH


def wavering(random: np.random.Generator, work: np.ndarray) -> Measures:
    """Ranks whose processor is slower by up to a half, and who wait for it: compute feels 0.8 and 0.3 of these."""
    slower, queued = random.uniform(0.0, 0.4, 4), random.uniform(0.0, 1.0, 4)
    compute = work * np.exp(0.8 * slower + 0.3 * np.log1p(queued))
    return Measures(probe=2e-5 * np.exp(slower), queued=queued * compute, compute=compute)


def steadied(work: np.ndarray, steps: int = STEPS, model: ProcessorModel | None = None) -> np.ndarray:
    """(steps, ranks): compute without what the processor explains."""
    random, model = np.random.default_rng(1), model or ProcessorModel()
    found = []
    for _ in range(steps):
        measured = wavering(random, work)
        found.append(measured.compute / model.slower(RANKS, measured, HEALTHY))
    return np.array(found)


def test_what_the_processor_does_to_compute_is_learnt_and_taken_out() -> None:
    logs = np.log(steadied(np.full(4, 0.05)))

    assert logs[: ENOUGH // 4].std() > 0.1
    assert logs[-ENOUGH:].std() < 0.03


def test_a_rank_that_has_more_to_do_stays_slow() -> None:
    model = ProcessorModel()
    steadied(np.full(4, 0.05), model=model)

    slow = steadied(np.array([0.05, 0.05, 0.06, 0.05]), steps=20, model=model)

    beside = np.median(slow[:, 2] / np.median(slow[:, [0, 1, 3]], axis=1))
    assert beside == pytest.approx(1.2, abs=0.03)


def test_a_processor_that_was_slow_from_the_start_is_no_excuse() -> None:
    model, random = ProcessorModel(), np.random.default_rng(2)
    for _ in range(STEPS):
        measured = wavering(random, np.full(4, 0.05))
        measured.probe[2] *= 1.5
        measured.compute[2] *= 1.5
        found = measured.compute / model.slower(RANKS, measured, HEALTHY)

    assert found[2] / np.median(found) == pytest.approx(1.5, rel=0.1)


def test_measures_that_do_not_vary_with_compute_change_nothing() -> None:
    random, model = np.random.default_rng(3), ProcessorModel()
    for _ in range(4 * AVERAGED_STEPS):
        compute = 0.05 * np.exp(random.normal(0, 0.01, 4))
        measured = Measures(2e-5 * np.exp(random.normal(0, 0.3, 4)), np.zeros(4), compute)
        slower = model.slower(RANKS, measured, HEALTHY)

    assert slower == pytest.approx(np.ones(4), abs=0.01)


@pytest.mark.parametrize("value", [np.nan, 0.0, np.inf])
def test_what_was_not_measured_explains_nothing_and_spoils_nothing(value: float) -> None:
    model = ProcessorModel()
    steadied(np.full(4, 0.05), model=model)
    measured = wavering(np.random.default_rng(4), np.full(4, 0.05))
    measured.probe[1] = value

    slower = model.slower(RANKS, measured, HEALTHY)

    assert slower[1] == 1.0
    assert np.isfinite(model.slower(RANKS, wavering(np.random.default_rng(5), np.full(4, 0.05)), HEALTHY)).all()
