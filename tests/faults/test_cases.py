"""What is drawn of the fault matrix."""

from __future__ import annotations

import pytest

from tests.faults.cases import ALL_LAYOUTS, CLEAN, EXPECTED, FAULTY, drawn, kinds_of

SHARE = 0.13
"""Of `make faults-drawn`."""


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
