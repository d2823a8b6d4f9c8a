"""What a podTemplate, and labels, annotations and storage beside it, can't take from the platform."""

from __future__ import annotations

import json
from typing import Any

import pytest

from megatronapp.core.errors import ConfigError
from megatronapp.core.trainingjob import TrainingJob, pod_template
from megatronapp.core.trainingjob.pod_template import MAX_DEPTH

Spec = dict[str, Any]
TOKEN_FOLDER = "/var/run/secrets/megatronapp.io"


def parsed(**spec: Any) -> TrainingJob:
    content = {
        "apiVersion": "megatronapp.io/v1alpha1",
        "kind": "TrainingJob",
        "metadata": {"name": "gpt"},
        "spec": {"procPerNode": 8, **spec},
    }
    return TrainingJob.parse(json.dumps(content), "job.yaml")


def template(**spec: Any) -> Spec:
    return {"podTemplate": {"spec": spec}}


def trainer(**container: Any) -> Spec:
    return template(containers=[{"name": "trainer", **container}])


def mounted(path: str) -> Spec:
    return trainer(volumeMounts=[{"name": "x", "mountPath": path}])


@pytest.mark.parametrize(
    ("spec", "says"),
    [
        ({"podTemplate": {"metadata": {"labels": {"megatronapp.io/training-job": "vic"}}}}, "training-job is set by"),
        ({"podTemplate": {"metadata": {"labels": {"megatronapp.io/run": None}}}}, "run is set by the platform"),
        (
            {"podTemplate": {"metadata": {"annotations": {"batch.kubernetes.io/job-completion-index": "9"}}}},
            "is set by",
        ),
        ({"podTemplate": {"metadata": {"labels": {"job-name": "x"}}}}, "job-name is set by the platform"),
        ({"podTemplate": {"metadata": {"labels": {"a": 1}}}}, "metadata.labels.a must be text"),
        ({"podTemplate": {"metadata": {"labels": None}}}, "metadata.labels must be an object"),
        ({"podTemplate": {"metadata": {"finalizers": ["x"]}}}, "only labels and annotations can be given"),
        ({"podTemplate": {"metadata": None}}, "metadata must be an object"),
        ({"podTemplate": {"spec": None}}, "spec must be an object"),
        ({"podTemplate": {"containers": []}}, "a pod template has only metadata and spec"),
        (template(restartPolicy="OnFailure"), r"spec\.restartPolicy is set by the platform"),
        (template(subdomain=None), r"spec\.subdomain is set by the platform"),
        (template(volumes=[{"name": "megatronapp-token", "emptyDir": {}}]), "megatronapp-token is the platform's"),
        (template(volumes=None), r"spec\.volumes must be a list"),
        (template(containers=None), r"spec\.containers must be a list"),
        (template(containers=[{"name": {"a": "b"}}]), r"spec\.containers\.0: name must be given, as text"),
        (template(initContainers=[{"image": "x"}]), r"spec\.initContainers\.0: name must be given"),
        (template(containers=[{"name": "a"}, {"name": "a"}]), "name a is given twice"),
        (template(containers=["trainer"]), r"spec\.containers\.0: name must be given"),
        (trainer(env=None), r"spec\.containers\.0\.env must be a list"),
        (trainer(env=[{"name": "PET_NNODES", "value": "1"}]), "PET_NNODES is set by the platform"),
        (trainer(env=[{"name": "MEGATRONAPP_RUN_ID", "value": "x"}]), "MEGATRONAPP_RUN_ID is set by the platform"),
        (trainer(env=[{"name": "WORLD_SIZE", "value": "x"}]), "WORLD_SIZE is set by the platform"),
        (trainer(volumeMounts=None), r"volumeMounts must be a list"),
        (mounted(TOKEN_FOLDER), "would hide the platform's token"),
        (mounted(f"{TOKEN_FOLDER}/"), "would hide the platform's token"),
        (mounted(f"{TOKEN_FOLDER}/token"), "would hide the platform's token"),
        (mounted("//var/run/../run/secrets"), "would hide the platform's token"),
        (mounted("/run/secrets/megatronapp.io"), "would hide the platform's token"),
        ({"labels": {"megatronapp.io/run": "x"}}, "labels: megatronapp.io/run is set by the platform"),
        ({"annotations": {"batch.kubernetes.io/job-completion-index": "0"}}, "annotations: batch.kubernetes.io"),
        ({"labels": {"app.kubernetes.io/managed-by": "x"}}, "managed-by is set by the platform"),
        ({"storage": [{"name": "a", "claimName": "c", "mountPath": TOKEN_FOLDER}]}, "would hide the platform's token"),
        ({"scheduling": {"tolerations": [{"key": {"a": "b"}}]}}, r"tolerations\.0: key must be text"),
        ({"activeDeadlineSeconds": 10**12}, r"activeDeadlineSeconds: .* less than or equal to"),
        ({"ttlSecondsAfterFinished": 10**12}, r"ttlSecondsAfterFinished: .* less than or equal to"),
        ({"remediation": {"cooldownSeconds": 10**12}}, r"cooldownSeconds: .* less than or equal to"),
        ({"remediation": {"confirmations": 10**12}}, r"confirmations: .* less than or equal to"),
        ({"failurePolicy": {"stuckTerminationSeconds": 10**12}}, r"stuckTerminationSeconds: .* less than or equal to"),
    ],
)
def test_what_is_the_platforms_is_refused_with_what_to_do(spec: Spec, says: str) -> None:
    with pytest.raises(ConfigError, match=says) as refused:
        parsed(**spec)

    assert str(refused.value).startswith("job.yaml: spec")


@pytest.mark.parametrize(
    "spec",
    [
        template(hostNetwork=True, hostname="own", nodeSelector={"a": "b"}),
        template(containers=[{"name": "side", "image": "x", "env": [{"name": "RANK", "value": "1"}]}]),
        trainer(env=[{"name": "NCCL_DEBUG", "value": "INFO"}], resources={"limits": {"cpu": 1}}),
        mounted("/var/lib/data"),
        mounted("/run/lock"),
        template(volumes=[{"name": "scratch", "hostPath": {"path": "/scratch"}}]),
        {"podTemplate": {"metadata": {"labels": {"team": "a"}, "annotations": {"x": None}, "creationTimestamp": None}}},
        {"labels": {"megatronapp.io.example.com/x": "y"}},
    ],
)
def test_what_is_the_users_is_taken(spec: Spec) -> None:
    assert parsed(**spec)


def nested(levels: int) -> Any:
    found: Any = []
    for _ in range(levels - 1):
        found = [found]
    return found


def test_a_spec_has_a_depth() -> None:
    assert parsed(**template(x=nested(MAX_DEPTH - 4)))
    with pytest.raises(ConfigError, match=f"nested more than {MAX_DEPTH} levels deep"):
        parsed(**template(x=nested(MAX_DEPTH)))


def test_a_spec_has_a_size(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pod_template, "MAX_VALUES", 1000)

    assert parsed(**template(x=[0] * 900))
    with pytest.raises(ConfigError, match="more than 1000 values"):
        parsed(**template(x=[0] * 1001))


def test_a_file_is_refused_that_is_nested_too_deep() -> None:
    with pytest.raises(ConfigError, match="nested deeper than"):
        TrainingJob.parse("[" * 3000 + "]" * 3000)


def test_a_file_that_contains_itself_is_refused() -> None:
    loop = (
        "{apiVersion: megatronapp.io/v1alpha1, kind: TrainingJob, metadata: {name: a},"
        " spec: {procPerNode: 1, podTemplate: &a {spec: *a}}}"
    )
    with pytest.raises(ConfigError, match="an alias within what it stands for"):
        TrainingJob.parse(loop)
