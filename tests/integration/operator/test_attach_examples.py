"""The examples of attached JobSets and PyTorchJobs, read by the types that their own projects publish for Python.

JobSet v1alpha2 as Kubeflow Trainer 2.3.0 has it, PyTorchJob v1 of Kubeflow's training operator 1.9.4. No controller
runs.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.support import training_packages

EXAMPLES = Path(__file__).parents[3] / "examples" / "attach"
PACKAGES = ("kubeflow-trainer-api==2.3.0", "kubeflow-training==1.9.4", "six", "retrying")
JOBSET = """
from kubeflow_trainer_api.models.jobset_v1alpha2_job_set import JobsetV1alpha2JobSet
known = JobsetV1alpha2JobSet.from_dict(body).to_dict()
"""
PYTORCHJOB = """
from kubeflow.training import ApiClient
client = ApiClient()
body["spec"]["runPolicy"] = {}  # these types want it; Kubeflow's own examples leave it out
client.NATIVE_TYPES_MAPPING |= {"V1ObjectMeta": object, "V1PodTemplateSpec": object}  # Kubernetes' own: test_render.py
known = client.sanitize_for_serialization(client._ApiClient__deserialize(body, "KubeflowOrgV1PyTorchJob"))
known["spec"].pop("runPolicy")
"""
Read = Callable[[str, dict[str, Any]], Any]
"""(types, body) -> the body as far as these types know it; fields that they lack are left out."""


@pytest.fixture(scope="module")
def read(tmp_path_factory: pytest.TempPathFactory) -> Read:
    found = training_packages.install(tmp_path_factory.mktemp("kubeflow"), *PACKAGES)

    def read(types: str, body: dict[str, Any]) -> Any:
        program = f"import json, sys\nbody = json.load(sys.stdin)\n{types}\nprint(json.dumps(known))"
        command = [sys.executable, "-c", program]
        done = subprocess.run(command, input=json.dumps(body), capture_output=True, text=True, env=found, check=True)
        return json.loads(done.stdout)

    return read


def example(name: str) -> dict[str, Any]:
    body: dict[str, Any] = yaml.safe_load((EXAMPLES / f"{name}.yaml").read_text())
    return body


@pytest.mark.long
@pytest.mark.timeout(300)
@pytest.mark.parametrize(("name", "types"), [("jobset", JOBSET), ("pytorchjob", PYTORCHJOB)])
def test_an_example_holds_nothing_that_its_project_does_not_know(read: Read, name: str, types: str) -> None:
    body = example(name)

    assert read(types, body) == body


@pytest.mark.long
@pytest.mark.timeout(300)
@pytest.mark.parametrize(
    ("name", "types", "places"),
    [("jobset", JOBSET, "replicatedJobs"), ("pytorchjob", PYTORCHJOB, "pytorchReplicaSpecs")],
)
def test_a_name_that_is_none_of_theirs_would_be_seen(read: Read, name: str, types: str, places: str) -> None:
    body = example(name)
    below = body["spec"][places]
    (below[0] if isinstance(below, list) else below["Worker"])["replica"] = 2

    assert read(types, body) != body
