from __future__ import annotations

import pytest

from bench.corpus import gpus, record
from tests.faults.cases import Case

CASES = [(case, record.TWO_GPUS) for case in gpus.OF_TWO] + [(case, record.FOUR_GPUS) for case in gpus.OF_FOUR]


@pytest.mark.parametrize(("case", "kit"), CASES, ids=lambda each: getattr(each, "name", ""))
def test_each_case_can_be_played_by_its_kit(case: Case, kit: record.Kit) -> None:
    broken = {rank for fault in case.scenario.faults for rank in fault.ranks}

    assert case.layout in kit.layouts
    assert broken <= set(range(kit.world))


def test_cases_have_names_of_their_own() -> None:
    names = [case.name for case, _ in CASES]

    assert len(set(names)) == len(names)
