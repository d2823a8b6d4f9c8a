"""No field of the spec is accepted and ignored: it changes what the operator makes, or the operator reads it later."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pydantic.alias_generators import to_snake

from megatronapp.core.trainingjob import Status
from megatronapp.operator.actions import Create
from megatronapp.operator.crd import definition
from megatronapp.operator.reconcile import decide
from tests.unit.operator.samples import observation, training_job

OPERATOR = Path("services/operator/megatronapp/operator")
FAULT = {"kind": "slow_compute", "ranks": [1], "from_step": 30, "effect_ratio": 1.2}
READ_LATER = {
    "elastic.minNodes": "moves.py",
    "failurePolicy.maxRestarts": "moves.py",
    "failurePolicy.stuckTerminationSeconds": "observation.py",
    "failurePolicy.backoffSeconds": "backoff.py",
    "failurePolicy.maxBackoffSeconds": "backoff.py",
    "activeDeadlineSeconds": "moves.py",
    "failurePolicy.startupTimeoutSeconds": "startup.py",
    "remediation.mode": "remediate.py",
    "remediation.minConfidence": "remediate.py",
    "remediation.confirmations": "remediate.py",
    "remediation.cooldownSeconds": "remediate.py",
    "ttlSecondsAfterFinished": "reconcile.py",
    "managedBy": "controller.py",
}
"""Field → the module that reads it, while the job runs or after."""
BOUNDS = {"elastic.maxNodes"}
"""Limits of other fields, which the model checks."""
BASES: dict[str, dict[str, Any]] = {
    "mode": {"parallelism": {"tensor": 4}, "plugins": {"scope": {"enabled": True}}, "args": ["--load", "/data"]},
    "parallelism.virtualPipeline": {"parallelism": {"pipeline": 2}},
    "attach": {"image": "registry.example.com/gpt:1", "command": ["torchrun", "train.py"]},
    "plugins.dpp.enabled": {"parallelism": {"pipeline": 2}},
    "plugins.fbd.enabled": {"parallelism": {"pipeline": 2}},
    "plugins.megatrace.enabled": {},
    "plugins.megatrace.": {"plugins": {"megatrace": {"enabled": True}}},
    "plugins.dpp.": {
        "plugins": {"dpp": {"enabled": True}},
        "parallelism": {"pipeline": 2},
        "rdma": {"resourceName": "rdma/hca"},
    },
    "plugins.fbd.": {"plugins": {"fbd": {"enabled": True}}, "parallelism": {"pipeline": 2}},
    "plugins.faults.scenarioFrom": {"plugins": {"faults": {"scenarioFrom": {"name": "slow", "key": "slow.yaml"}}}},
    "rdma": {"rdma": {"resourceName": "rdma/hca"}},
    "scheduling.topology": {"scheduling": {"topology": {"level": "rack"}}},
    "storage": {"storage": [{"name": "data", "claimName": "corpus", "mountPath": "/data"}]},
    "env": {"env": [{"name": "A"}]},
    "imagePullSecrets": {"imagePullSecrets": [{"name": "registry"}]},
}
"""What a field acts with, by the beginning of its path."""
VALUES: dict[str, Any] = {
    "nodes": 4,
    "procPerNode": 4,
    "plugins.megatrace.ringMib": 16,
    "plugins.fbd.forwardTensor": 1,
    "plugins.faults.scenario": {"faults": [FAULT]},
    "failurePolicy.nonRetriableExitCodes": [3],
    "scheduling.gang": "Volcano",
    "scheduling.tolerations": [{"key": "nvidia.com/gpu", "operator": "Exists"}],
    "storage.mountPath": "/elsewhere",
    "env.valueFrom": {"fieldRef": {"fieldPath": "spec.nodeName"}},
    "envFrom": [{"secretRef": {"name": "another"}}],
    "podTemplate": {"spec": {"hostNetwork": True}},
}
"""Of fields for which `another` finds none that fits."""


def leaves(schema: dict[str, Any], path: str = "") -> Iterator[tuple[str, dict[str, Any]]]:
    """Path and schema of each field; a scenario is one, as it is passed on as it is."""
    inner = schema.get("items", schema)
    if "properties" not in inner or path == "plugins.faults.scenario":
        yield path, schema
        return
    for name, child in inner["properties"].items():
        yield from leaves(child, f"{path}.{name}".lstrip("."))


SPEC = definition()["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["spec"]
FIELDS = dict(leaves(SPEC))


def another(schema: dict[str, Any]) -> Any:
    """A value that is not the default."""
    default = schema.get("default")
    match schema.get("type"):
        case "boolean":
            return not default
        case "integer":
            return schema.get("minimum", 0) + 1 if default is None else default + 1
        case "array":
            return [another(schema["items"])]
        case "object":
            return {"another": "1"}
        case "string":
            return next((value for value in schema.get("enum", []) if value != default), "another")
    return "1"


def with_value(spec: dict[str, Any], path: str, value: Any) -> dict[str, Any]:
    """A copy of the spec with the field set, in the first item of a list."""
    key, _, rest = path.partition(".")
    if not rest:
        return {**spec, key: value}
    inner = spec.get(key, {})
    if isinstance(inner, list):
        return {**spec, key: [with_value(inner[0], rest, value), *inner[1:]]}
    return {**spec, key: with_value(inner, rest, value)}


def base_of(path: str) -> dict[str, Any]:
    return next((base for start, base in BASES.items() if path.startswith(start)), {})


def made_of(spec: dict[str, Any]) -> list[dict[str, Any]]:
    job = training_job(Status(attempt=3), **spec)
    decision = decide(observation(job, service=False))
    return [action.body for action in decision.actions if isinstance(action, Create)]


@pytest.mark.parametrize("path", sorted(FIELDS.keys() - READ_LATER.keys() - BOUNDS))
def test_a_field_changes_what_is_made(path: str) -> None:
    base = base_of(path)
    value = VALUES[path] if path in VALUES else another(FIELDS[path])
    changed = with_value(base, path, value)

    assert made_of(changed) != made_of(base)


@pytest.mark.parametrize("path", READ_LATER)
def test_what_is_read_later_is_a_field_and_is_read_there(path: str) -> None:
    name = path.rpartition(".")[2]

    assert path in FIELDS
    assert re.search(rf'\.{to_snake(name)}\b|"{name}"', (OPERATOR / READ_LATER[path]).read_text())


def test_no_more_nodes_are_taken_than_a_bound_allows() -> None:
    assert FIELDS.keys() >= BOUNDS
    with pytest.raises(ValueError, match="maxNodes 1"):
        made_of({"elastic": {"minNodes": 1, "maxNodes": 1}})
