from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from megatronapp.core.errors import ConfigError, UsageError
from megatronapp.core.scenario import Fault, FaultKind, Scenario
from megatronapp.core.trace.values import ParallelSizes
from megatronapp.trainer.plugins.faults.injection import check_targets

EXAMPLES = Path(__file__).parents[5] / "examples" / "scenarios"
SLOW: dict[str, Any] = {"kind": "slow_compute", "ranks": [1], "from_step": 3, "effect_ratio": 1.2}


def load(folder: Path, content: object) -> Scenario:
    file = folder / "scenario.yaml"
    file.write_text(yaml.safe_dump(content))
    return Scenario.load(file)


def test_there_is_an_example_of_every_kind() -> None:
    kinds = {fault.kind for path in EXAMPLES.glob("*.yaml") for fault in Scenario.load(path).faults}

    assert kinds == set(FaultKind)


@given(from_step=st.integers(1, 50), length=st.integers(0, 50), every=st.integers(1, 5), step=st.integers(1, 120))
def test_a_fault_acts_in_its_steps_alone(from_step: int, length: int, every: int, step: int) -> None:
    fault = Fault(**SLOW | {"from_step": from_step, "to_step": from_step + length, "every": every})

    assert fault.active(step) == (step in range(from_step, from_step + length + 1, every))


def test_a_fault_is_bound_to_ranks_stages_or_a_node() -> None:
    here = {"rank": 1, "stage": 0, "node": "a"}

    assert Fault(**SLOW).hits(**here)
    assert not Fault(**SLOW | {"ranks": [0]}).hits(**here)
    assert Fault(**SLOW | {"ranks": [], "stages": [0]}).hits(**here)
    assert Fault(**SLOW | {"ranks": [], "node": "a"}).hits(**here)
    assert not Fault(**SLOW | {"ranks": [], "node": "b"}).hits(**here)


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"stages": [0]}, r"faults\.0: .*exactly one of ranks, stages and node"),
        ({"ranks": []}, "exactly one of ranks, stages and node"),
        ({"to_step": 2}, "to_step lies before from_step"),
        ({"seconds": 1}, "slow_compute takes effect_ratio, not seconds"),
        ({"effect_ratio": 1}, r"faults\.0\.effect_ratio"),
        ({"kind": "late_link"}, "late_link takes seconds, not effect_ratio"),
        ({"kind": "hang"}, "hang takes neither"),
        ({"side": "host"}, "side belongs to hang"),
        ({"kind": "slow"}, r"faults\.0\.kind"),
        ({"form_step": 3}, r"faults\.0\.form_step"),
    ],
)
def test_a_wrong_fault_is_refused_with_its_place(tmp_path: Path, change: dict[str, Any], says: str) -> None:
    with pytest.raises(ConfigError, match=says) as caught:
        load(tmp_path, {"faults": [SLOW | change]})

    assert str(tmp_path / "scenario.yaml") in str(caught.value)


def test_a_file_that_is_none_is_refused(tmp_path: Path) -> None:
    (tmp_path / "broken.yaml").write_text("faults: [")

    with pytest.raises(ConfigError, match="is not YAML"):
        Scenario.load(tmp_path / "broken.yaml")
    with pytest.raises(ConfigError, match="No such file"):
        Scenario.load(tmp_path / "gone.yaml")


def test_a_fault_that_could_never_act_is_refused() -> None:
    sizes = ParallelSizes(world=4, pipeline=2)

    check_targets(Scenario(faults=(Fault(**SLOW),)), sizes)
    with pytest.raises(UsageError, match="fault 2 names rank 4, but there are 4"):
        check_targets(Scenario(faults=(Fault(**SLOW), Fault(**SLOW | {"ranks": [0, 4]}))), sizes)
    with pytest.raises(UsageError, match="fault 1 names stage 2, but there are 2"):
        check_targets(Scenario(faults=(Fault(**SLOW | {"ranks": [], "stages": [2]}),)), sizes)
