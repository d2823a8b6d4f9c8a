from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from megatronapp.detector import profiles
from megatronapp.detector.rules.base import DISPUTED, PAGE_STEPS, confidence


def monitor(log_evidence: float) -> Any:
    return SimpleNamespace(log_evidence=np.array([log_evidence]), log_threshold=10.0)


def test_an_alarm_is_at_least_95_percent_certain() -> None:
    assert confidence(monitor(10.0), 0) >= 0.95


def test_a_second_signal_that_does_not_agree_takes_some_of_it() -> None:
    agreed = confidence(monitor(20.0), 0)

    assert confidence(monitor(20.0), 0, disputed=True) == pytest.approx(agreed * DISPUTED, abs=1e-3)


@pytest.mark.parametrize("evidence", [-1e-3, -5.0, -1e6, -np.inf])
def test_evidence_against_it_is_no_confidence(evidence: float) -> None:
    """A node's worst rank may be one that speaks for its health."""
    assert confidence(monitor(evidence), 0) == 0.0


def test_two_slow_steps_may_be_outliers_on_every_device() -> None:
    """However few and long steps are: seconds stand for none of them."""
    patience = (profiles.GPU.patience, profiles.CPU.patience)

    assert min(PAGE_STEPS, *(of.steps for of in patience), *(of.wall_steps for of in patience)) == 3
