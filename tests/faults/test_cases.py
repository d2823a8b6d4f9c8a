"""What the fault matrix holds, and what is drawn of it."""

from __future__ import annotations

import pytest

from megatronapp.core.scenario import FaultKind
from tests.faults.cases import ALL_LAYOUTS, CLEAN, EXPECTED, FAULTY, LAYOUTS, drawn, kinds_of

SHARE = 0.25
"""Of `make faults-drawn`."""
STALLS = (FaultKind.HOST_STALL, FaultKind.DATA_STALL, FaultKind.LATE_LINK)
STEP_SECONDS = 0.1
"""Of every layout, or little more."""


@pytest.mark.parametrize("layout", LAYOUTS)
def test_every_layout_has_faults_of_all_kinds_and_sizes(layout: str) -> None:
    alone = [each.scenario.faults[0] for each in FAULTY if each.layout == layout and len(each.scenario.faults) == 1]
    ratios = sorted(fault.effect_ratio or 0.0 for fault in alone if fault.kind is FaultKind.SLOW_COMPUTE)
    stalls = {kind: [fault.seconds or 0.0 for fault in alone if fault.kind is kind] for kind in STALLS}

    assert ratios == [1.1, 1.2, 1.4]
    for kind, seconds in stalls.items():
        assert min(seconds) <= STEP_SECONDS / 3, kind
        assert max(seconds) >= STEP_SECONDS / 2, kind
    assert FaultKind.HANG in {fault.kind for fault in alone}


def test_every_layout_that_the_trainer_has_on_cpus_is_played() -> None:
    flags = {flag.split("=")[0] for options in LAYOUTS.values() for flag in options}

    assert flags >= {
        "--tensor-model-parallel-size",
        "--pipeline-model-parallel-size",
        "--num-virtual-stages-per-pipeline-rank",
        "--sequence-parallel",
        "--expert-model-parallel-size",
        "--use-distributed-optimizer",
    }
    assert {case.layout for case in CLEAN} == set(ALL_LAYOUTS)


@pytest.mark.parametrize("seed", range(20))
def test_a_small_part_has_every_layout_and_every_kind_of_fault(seed: int) -> None:
    cases = drawn(FAULTY, SHARE, seed)

    assert {case.layout for case in cases} == set(ALL_LAYOUTS)
    assert set(EXPECTED) <= {kind for case in cases for kind in kinds_of(case)}
    assert len(cases) == len(set(map(FAULTY.index, cases))) == round(SHARE * len(FAULTY))


def test_every_case_is_drawn_now_and_then() -> None:
    seen = {FAULTY.index(case) for seed in range(200) for case in drawn(FAULTY, SHARE, seed)}

    assert len(seen) == len(FAULTY)


def test_the_same_seed_draws_the_same_and_the_whole_is_everything() -> None:
    assert drawn(FAULTY, SHARE, 7) == drawn(FAULTY, SHARE, 7) != drawn(FAULTY, SHARE, 8)
    assert drawn(CLEAN, 1.0, 7) == CLEAN
