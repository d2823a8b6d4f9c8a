from pathlib import Path

import pytest

from megatronapp.core.errors import ConfigError
from megatronapp.core.scenario import Fault, FaultKind, Scenario

GOOD = """
seed: 7
faults:
  - {kind: slow_compute, ranks: [2], from_step: 31, to_step: 60, effect_ratio: 1.2}
  - {kind: hang, stages: [1], from_step: 80}
"""


def load(tmp_path: Path, text: str) -> Scenario:
    path = tmp_path / "scenario.yaml"
    path.write_text(text)
    return Scenario.load(path)


def test_a_scenario_file_is_read(tmp_path: Path) -> None:
    scenario = load(tmp_path, GOOD)

    assert [fault.kind for fault in scenario.faults] == [FaultKind.SLOW_COMPUTE, FaultKind.HANG]


@pytest.mark.parametrize(("step", "active"), [(30, False), (31, True), (60, True), (61, False)])
def test_a_fault_acts_from_its_first_to_its_last_step(step: int, active: bool) -> None:
    fault = Fault(kind=FaultKind.SLOW_COMPUTE, ranks=(2,), from_step=31, to_step=60, effect_ratio=1.2)

    assert fault.active(step) is active


def test_a_fault_may_act_in_every_second_step() -> None:
    fault = Fault(kind=FaultKind.SLOW_COMPUTE, ranks=(0,), from_step=10, effect_ratio=1.1, every=2)

    assert [fault.active(step) for step in (9, 10, 11, 12)] == [False, True, False, True]


def test_a_fault_hits_ranks_or_stages_or_a_node() -> None:
    assert Fault(kind=FaultKind.HANG, ranks=(1,), from_step=1).hits(rank=1, stage=0, node="a")
    assert Fault(kind=FaultKind.HANG, stages=(1,), from_step=1).hits(rank=9, stage=1, node="a")
    assert Fault(kind=FaultKind.HANG, node="a", from_step=1).hits(rank=9, stage=0, node="a")
    assert not Fault(kind=FaultKind.HANG, node="a", from_step=1).hits(rank=0, stage=0, node="")


@pytest.mark.parametrize(
    ("fault", "message"),
    [
        ("{kind: slow_compute, from_step: 1, effect_ratio: 1.2}", "exactly one of ranks, stages and node"),
        ("{kind: slow_compute, ranks: [0], stages: [0], from_step: 1, effect_ratio: 1.2}", "exactly one"),
        ("{kind: slow_compute, ranks: [0], from_step: 1}", "effect_ratio"),
        ("{kind: slow_compute, ranks: [0], from_step: 1, effect_ratio: 0.5}", "greater than 1"),
        ("{kind: host_stall, ranks: [0], from_step: 1}", "takes seconds"),
        ("{kind: hang, ranks: [0], from_step: 1, seconds: 3}", "takes neither"),
        ("{kind: hang, ranks: [0], from_step: 5, to_step: 4}", "before from_step"),
        ("{kind: fire, ranks: [0], from_step: 1}", "kind"),
        ("{kind: hang, ranks: [0], from_step: 0}", "from_step"),
        ("{kind: hang, rank: 0, from_step: 1}", "rank"),
    ],
)
def test_a_wrong_scenario_is_explained(tmp_path: Path, fault: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        load(tmp_path, f"faults: [{fault}]")


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"absent\.yaml"):
        Scenario.load(tmp_path / "absent.yaml")


@pytest.mark.parametrize(
    "kind", [FaultKind.SKIP_COLLECTIVE, FaultKind.WRONG_SIZE, FaultKind.WRONG_ORDER, FaultKind.KILL]
)
def test_faults_of_the_program_have_no_size(kind: FaultKind) -> None:
    assert Fault(kind=kind, ranks=(1,), from_step=3).active(3)
    with pytest.raises(ValueError, match="takes neither effect_ratio nor seconds"):
        Fault(kind=kind, ranks=(1,), from_step=3, seconds=1)
