import dataclasses
from pathlib import Path
from typing import Any

import pytest
import yaml

from megatronapp.core.errors import UsageError
from megatronapp.core.scenario import Scenario
from megatronapp.core.trainingjob import TrainingJob
from megatronapp.trainer.jobs import LocalPlan
from megatronapp.trainer.jobs.torchrun import exit_code

VOLUME = {"name": "data", "claimName": "corpus", "mountPath": "/data"}


def plan(folder: Path, spec: dict[str, Any], storage: dict[str, Path] | None = None) -> LocalPlan:
    job = TrainingJob.model_validate(
        {
            "apiVersion": "megatronapp.io/v1alpha1",
            "kind": "TrainingJob",
            "metadata": {"name": "gpt"},
            "spec": {"procPerNode": 2, **spec},
        }
    )
    return LocalPlan.make(job, folder, storage=storage or {}, collector_address="127.0.0.1:7601")


def test_ranks_know_their_run_and_nothing_of_an_outer_one(tmp_path: Path) -> None:
    local = plan(tmp_path, {"env": [{"name": "OMP_NUM_THREADS", "value": "2"}]})

    environment = local.environment(
        {"RANK": "3", "PET_NNODES": "2", "MASTER_ADDR": "x", "MEGATRONAPP_TOKEN_FILE": "y", "HOME": "/home"}, attempt=2
    )

    assert environment.pop("MEGATRONAPP_NODE_NAME")
    assert environment == {
        "HOME": "/home",
        "OMP_NUM_THREADS": "2",
        "PYTHONUNBUFFERED": "1",
        "MEGATRONAPP_RUN_ID": local.run,
        "MEGATRONAPP_JOB": "local/gpt",
        "MEGATRONAPP_ATTEMPT": "2",
        "MEGATRONAPP_CHECKPOINT_DIR": str(tmp_path / "checkpoints"),
        "MEGATRONAPP_COLLECTOR_ADDRESS": "127.0.0.1:7601",
    }


def test_ranks_find_the_certificates_that_the_command_was_given(tmp_path: Path) -> None:
    given = {"MEGATRONAPP_COLLECTOR_CA_FILE": "/own/ca.crt"}
    local = dataclasses.replace(plan(tmp_path, {}), certificates=given)

    environment = local.environment({"MEGATRONAPP_COLLECTOR_CLIENT_KEY_FILE": "an outer one's"}, attempt=1)

    assert {name: value for name, value in environment.items() if name.endswith("_FILE")} == given


def test_mount_paths_become_local_folders(tmp_path: Path) -> None:
    arguments = ["--data-path", "1", "/data/a", "--save=/data", "/database", "--log=x/data"]

    command = plan(tmp_path, {"storage": [VOLUME], "args": arguments}, {"data": tmp_path}).command()

    assert command[-6:] == ["--data-path", "1", f"{tmp_path}/a", f"--save={tmp_path}", "/database", "--log=x/data"]


@pytest.mark.parametrize(
    ("spec", "storage", "says"),
    [
        ({"storage": [VOLUME]}, {}, "--storage data=DIR"),
        ({"storage": [VOLUME]}, {"data": Path("/nowhere/at/all")}, "there is no such folder"),
        ({}, {"data": Path("/")}, "no storage of that name"),
        (
            {"plugins": {"dpp": {"enabled": True}}, "parallelism": {"pipeline": 2}},
            {},
            r"plugins\.dpp: this machine has no plug-in dpp",
        ),
        (
            {"plugins": {"dpp": {"enabled": True}}, "parallelism": {"pipeline": 2}},
            {},
            r"set plugins\.dpp\.enabled to false",
        ),
        ({"plugins": {"megatrace": {"enabled": True}}}, {}, r"plugins\.megatrace: .*pip install megatronapp-nccl"),
        ({"plugins": {"faults": {"scenarioFrom": {"name": "a", "key": "b"}}}}, {}, "inline on a laptop"),
    ],
)
def test_what_a_laptop_has_not_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, spec: dict[str, Any], storage: dict[str, Path], says: str
) -> None:
    monkeypatch.setattr("megatronapp.trainer.jobs.plan.installed", lambda: ["scan", "megatrace", "faults"])
    monkeypatch.setattr("megatronapp.trainer.jobs.plan.find_spec", lambda _: None)

    with pytest.raises(UsageError, match=says):
        plan(tmp_path, spec, storage)


def test_one_line_says_what_is_ignored(tmp_path: Path) -> None:
    spec = {"nodes": 2, "image": "x", "resources": {"limits": {"nvidia.com/gpu": 8}}, "imagePullPolicy": "Always"}

    assert plan(tmp_path, spec).notes() == [
        "Ignoring spec.image, spec.imagePullPolicy, spec.resources in local runs",
        "all 4 ranks of the 2 nodes run on this machine",
    ]
    assert plan(tmp_path, {}).notes() == []


def test_an_inline_scenario_reaches_the_ranks(tmp_path: Path) -> None:
    fault = {"kind": "slow_compute", "ranks": [1], "from_step": 30, "effect_ratio": 1.2}
    local = plan(tmp_path, {"plugins": {"faults": {"scenario": {"seed": 7, "faults": [fault]}}}})

    local.write()

    file = Path(local.command()[local.command().index("--fault-scenario") + 1])
    assert Scenario.load(file).seed == 7
    assert yaml.safe_load(file.read_text())["faults"] == [fault]


@pytest.mark.parametrize(
    ("codes", "expected"),
    [([1], 1), ([1, 2], 2), ([-9, 1], 137), ([-6, 1, 2], 2), ([3, 2], 3)],
)
def test_the_exit_code_is_that_of_the_rank_that_says_most(codes: list[int], expected: int) -> None:
    assert exit_code(codes) == expected
