"""Pod Security Standards on rendered pods: what each level lets through, rule by rule."""

from __future__ import annotations

from copy import deepcopy
from typing import Any

import pytest

from megatronapp.operator.pod_security import Level, violation
from megatronapp.operator.render import Plan
from megatronapp.operator.render.pod import pod_template
from tests.support.podsecurity import violations
from tests.unit.operator.samples import PLATFORM, training_job

CONTAINER = {
    "name": "c",
    "securityContext": {
        "allowPrivilegeEscalation": False,
        "capabilities": {"drop": ["ALL"]},
        "runAsNonRoot": True,
        "seccompProfile": {"type": "RuntimeDefault"},
    },
}
POD: dict[str, Any] = {"metadata": {}, "spec": {"containers": [CONTAINER]}}


def pod(**spec: Any) -> dict[str, Any]:
    return {**POD, "spec": {**POD["spec"], **spec}}


def container(**context: Any) -> dict[str, Any]:
    found = deepcopy(CONTAINER)
    found["securityContext"] |= context
    return pod(containers=[found])


BASELINE = {
    "hostNetwork": pod(hostNetwork=True),
    "hostPID": pod(hostPID=True),
    "hostIPC": pod(hostIPC=True),
    "volumes.x of type hostPath": pod(volumes=[{"name": "x", "hostPath": {"path": "/"}}]),
    "containers.c.securityContext.privileged": container(privileged=True),
    "capabilities.add SYS_ADMIN": container(capabilities={"drop": ["ALL"], "add": ["SYS_ADMIN"]}),
    "containers.c.securityContext.procMount": container(procMount="Unmasked"),
    "seccompProfile.type Unconfined": container(seccompProfile={"type": "Unconfined"}),
    "appArmorProfile.type Unconfined": pod(securityContext={"appArmorProfile": {"type": "Unconfined"}}),
    "securityContext.seLinuxOptions": pod(securityContext={"seLinuxOptions": {"type": "spc_t"}}),
    "securityContext.sysctls kernel.msgmax": pod(securityContext={"sysctls": [{"name": "kernel.msgmax"}]}),
    "hostProcess": pod(securityContext={"windowsOptions": {"hostProcess": True}}),
    "with a hostPort": pod(containers=[{**CONTAINER, "ports": [{"hostPort": 80}]}]),
    "of another host": pod(containers=[{**CONTAINER, "livenessProbe": {"httpGet": {"host": "10.0.0.1"}}}]),
    "AppArmor": {
        **POD,
        "metadata": {"annotations": {"container.apparmor.security.beta.kubernetes.io/c": "unconfined"}},
    },
    "initContainers.c.securityContext.privileged": pod(
        initContainers=[{**CONTAINER, "securityContext": {"privileged": True}}]
    ),
}
RESTRICTED = {
    "volumes.x of type nfs": pod(volumes=[{"name": "x", "nfs": {"server": "s", "path": "/"}}]),
    "allowPrivilegeEscalation not false": container(allowPrivilegeEscalation=None),
    "capabilities.drop without ALL": container(capabilities={"drop": ["NET_RAW"]}),
    "capabilities.add CHOWN": container(capabilities={"drop": ["ALL"], "add": ["CHOWN"]}),
    "runAsNonRoot not true": container(runAsNonRoot=False),
    "runAsUser 0": pod(securityContext={"runAsUser": 0}),
    "neither RuntimeDefault nor Localhost": container(seccompProfile=None),
}


@pytest.mark.parametrize("level", ["baseline", "restricted"])
@pytest.mark.parametrize("said", BASELINE)
def test_what_gives_power_over_the_node_breaks_both_levels(said: str, level: Level) -> None:
    found = violation(BASELINE[said], level)

    assert said in found or (said == "AppArmor" and "apparmor" in found)


@pytest.mark.parametrize("said", RESTRICTED)
def test_what_is_not_hardened_breaks_the_restricted_level_alone(said: str) -> None:
    assert said in violation(RESTRICTED[said], "restricted")
    assert violation(RESTRICTED[said], "baseline") == ""


@pytest.mark.parametrize("broken", [*BASELINE.values(), *RESTRICTED.values()])
def test_the_privileged_level_forbids_nothing(broken: dict[str, Any]) -> None:
    assert violation(broken, "privileged") == ""


@pytest.mark.parametrize(
    "wrong",
    [
        pod(securityContext="x"),
        pod(volumes=[1]),
        pod(containers=["x"]),
        pod(hostNetwork="true"),
        container(capabilities=7),
    ],
)
def test_what_is_of_the_wrong_kind_does_not_pass(wrong: dict[str, Any]) -> None:
    assert violation(wrong, "baseline")


@pytest.mark.parametrize(
    "spec",
    [
        {},
        {"plugins": {"faults": {"scenarioFrom": {"name": "s", "key": "k"}}}},
        {"storage": [{"name": "checkpoints", "claimName": "c", "mountPath": "/c"}]},
        {"scheduling": {"exclude_nodes": ["a"], "gang": "None"}},
    ],
)
def test_the_platforms_own_pods_keep_the_restricted_level(spec: dict[str, Any]) -> None:
    template = pod_template(Plan(training_job(**spec), 1, 2, (), PLATFORM))

    assert violation(template, "restricted") == ""
    assert violations(template["spec"]) == []


def test_capabilities_that_the_platform_adds_itself_may_be_named() -> None:
    pinning = container(capabilities={"drop": ["ALL"], "add": ["IPC_LOCK"]})

    assert "IPC_LOCK" in violation(pinning, "restricted")
    assert violation(pinning, "restricted", frozenset({"IPC_LOCK"})) == ""
