"""What an installation lets jobs ask of their pods, and what it says of the rest."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from megatronapp.core.trainingjob import TrainingJob
from megatronapp.operator.pod_policy import POD_TEMPLATE_FIELDS, PodPolicy, denied
from megatronapp.operator.render import Plan
from megatronapp.operator.render.pod import pod_template
from tests.unit.operator.samples import PLATFORM, training_job

SECRET = {"secretKeyRef": {"name": "hf-token", "key": "k"}}
TOKEN = {"serviceAccountToken": {"audience": "vault", "path": "t"}}


def template(**spec: Any) -> dict[str, Any]:
    return {"podTemplate": {"spec": spec}}


def verdict(job: TrainingJob, policy: PodPolicy | None = None) -> str:
    return denied(job.spec, pod_template(Plan(job, 1, 2, (), PLATFORM)), policy or PodPolicy())


DENIED = [
    (template(hostNetwork=True), "podTemplate.spec.hostNetwork", "podTemplateFields"),
    (template(hostPID=True), "podTemplate.spec.hostPID", "podTemplateFields"),
    (template(nodeName="control-plane"), "podTemplate.spec.nodeName", "podTemplateFields"),
    (template(runtimeClassName="kata"), "podTemplate.spec.runtimeClassName", "podTemplateFields"),
    (template(automountServiceAccountToken=True), "podTemplate.spec.automountServiceAccountToken", "podTemplateFields"),
    (template(serviceAccountName="admin"), "podTemplate.spec.serviceAccountName", "podTemplateFields"),
    (template(aFieldOfTomorrow=1), "podTemplate.spec.aFieldOfTomorrow", "podTemplateFields"),
    ({"serviceAccountName": "admin"}, "service account admin", "serviceAccounts"),
    ({"env": [{"name": "A", "valueFrom": SECRET}]}, "Secret hf-token", "secrets"),
    ({"envFrom": [{"secretRef": {"name": "s"}}]}, "Secret s", "secrets"),
    (template(containers=[{"name": "c", "env": [{"name": "A", "valueFrom": SECRET}]}]), "Secret hf-token", "secrets"),
    (template(volumes=[{"name": "x", "secret": {"secretName": "s"}}]), "Secret s", "secrets"),
    (template(volumes=[{"name": "x", "projected": {"sources": [{"secret": {"name": "s"}}]}}]), "Secret s", "secrets"),
    (template(volumes=[{"name": "x", "azureFile": {"secretName": "s"}}]), "Secret s", "secrets"),
    (
        template(volumes=[{"name": "x", "csi": {"driver": "d", "volumeAttributes": {"secretProviderClass": "vault"}}}]),
        "Secret vault",
        "secrets",
    ),
    (
        template(volumes=[{"name": "x", "csi": {"driver": "d", "nodePublishSecretRef": {"name": "s"}}}]),
        "Secret s",
        "secrets",
    ),
    (template(volumes=[{"name": "x", "projected": {"sources": [TOKEN]}}]), "a token", "serviceAccounts"),
    (template(volumes=[{"name": "x", "hostPath": {"path": "/"}}]), "volumes.x of type hostPath", "podSecurity"),
    (template(containers=[{"name": "trainer", "securityContext": {"privileged": True}}]), "privileged", "podSecurity"),
    (template(containers=[{"name": "side", "image": "x"}]), "containers.side.securityContext", "podSecurity"),
    (template(securityContext=None), "runAsNonRoot not true", "podSecurity"),
]  # fmt: skip


@pytest.mark.parametrize(("spec", "what", "switch"), DENIED)
def test_what_makes_more_of_a_pod_than_a_rank_is_denied_by_name_and_switch(
    spec: dict[str, Any], what: str, switch: str
) -> None:
    said = verdict(training_job(**spec))

    assert what in said
    assert f"operator.jobs.{switch}" in said


@pytest.mark.parametrize(("spec", "_what", "_switch"), DENIED)
def test_an_installation_without_limits_allows_all(spec: dict[str, Any], _what: str, _switch: str) -> None:
    assert verdict(training_job(**spec), PodPolicy("privileged", ("*",), ("*",), ("*",))) == ""


def test_names_may_end_with_a_star() -> None:
    job = training_job(serviceAccountName="team-a", env=[{"name": "A", "valueFrom": SECRET}])

    assert verdict(job, PodPolicy(service_accounts=("team-*",), secrets=("hf-*",))) == ""
    assert "service account team-a" in verdict(job, PodPolicy(service_accounts=("tea",), secrets=("*",)))


def test_whose_account_is_allowed_may_have_its_token() -> None:
    job = training_job(
        serviceAccountName="robot", **template(volumes=[{"name": "x", "projected": {"sources": [TOKEN]}}])
    )

    assert verdict(job, PodPolicy(service_accounts=("robot",))) == ""


@pytest.mark.parametrize(
    "spec",
    [
        {"serviceAccountName": "default"},
        {"imagePullSecrets": [{"name": "registry"}]},
        {"rdma": {"resourceName": "rdma/hca"}},
        {"envFrom": [{"configMapRef": {"name": "c"}}]},
        template(hostname="own", tolerations=[{"operator": "Exists"}]),
        template(containers=[{"name": "trainer", "env": [{"name": "A", "value": "b"}]}]),
        template(volumes=[{"name": "x", "configMap": {"name": "c"}}], imagePullSecrets=[{"name": "registry"}]),
    ],
)
def test_what_a_rank_needs_is_allowed_by_default(spec: dict[str, Any]) -> None:
    assert verdict(training_job(**spec)) == ""


def test_the_example_is_allowed_by_default() -> None:
    (_, example) = yaml.safe_load_all(Path("examples/k8s/gpt-tiny.yaml").read_text())

    assert verdict(TrainingJob.model_validate(example)) == ""


@pytest.mark.parametrize("family", ["gpt", "bert", "t5", "llama", "moe"])
def test_a_familys_example_is_allowed_by_default(family: str) -> None:
    example = yaml.safe_load(Path(f"examples/models/{family}.yaml").read_text())

    assert verdict(TrainingJob.model_validate(example)) == ""


def test_the_charts_default_is_the_operators() -> None:
    jobs = yaml.safe_load(Path("deploy/helm/megatronapp/values.yaml").read_text())["operator"]["jobs"]

    assert tuple(jobs["podTemplateFields"]) == POD_TEMPLATE_FIELDS
    assert PodPolicy(
        jobs["podSecurity"], POD_TEMPLATE_FIELDS, tuple(jobs["serviceAccounts"]), tuple(jobs["secrets"])
    ) == (PodPolicy())
