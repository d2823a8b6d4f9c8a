"""What the installation lets a TrainingJob ask of its pods: who may create one must not thereby create any pod. Pure.

Checked on the pod as it would be made, so that no field of the spec is a way around; for `podTemplate` also field by
field, as what Kubernetes adds to pods later is not let in unseen.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from megatronapp.core.trainingjob import Spec
from megatronapp.core.trainingjob.reserved import TOKEN_VOLUME
from megatronapp.operator.pod_security import Level, violation

ANY = "*"
DEFAULT_ACCOUNT = "default"
POD_TEMPLATE_FIELDS = (
    "activeDeadlineSeconds", "affinity", "containers", "dnsConfig", "dnsPolicy", "enableServiceLinks", "hostAliases",
    "hostname", "imagePullSecrets", "initContainers", "nodeSelector", "preemptionPolicy", "priorityClassName",
    "readinessGates", "resourceClaims", "resources", "schedulingGates", "securityContext", "setHostnameAsFQDN",
    "shareProcessNamespace", "terminationGracePeriodSeconds", "tolerations", "topologySpreadConstraints", "volumes",
)  # fmt: skip
"""Fields of a pod's spec that give it no more than its namespace has anyway."""

SECRET_REFERENCES = frozenset({"secretKeyRef", "secretRef", "secret", "nodePublishSecretRef"})
SECRET_NAMES = frozenset({"secretName", "secretProviderClass"})
"""Fields of volumes that name a Secret, or what a secrets driver brings into the pod, beside other fields."""
PREFIX = "operator.jobs."


@dataclass(frozen=True)
class PodPolicy:
    """The chart's values `operator.jobs`. Names are exact, `*`, or a beginning followed by `*`."""

    pod_security: Level = "restricted"
    pod_template_fields: tuple[str, ...] = POD_TEMPLATE_FIELDS
    service_accounts: tuple[str, ...] = ()
    secrets: tuple[str, ...] = ()


def denied(spec: Spec, template: dict[str, Any], policy: PodPolicy) -> str:
    """What of a job is not allowed, and which value of the chart allows it; "" for a job that may run. `template` is
    the pod that is made of it."""
    for reason, switch in _reasons(spec, template, policy):
        return (
            f"{reason} is not allowed in this installation: leave it out, or have the chart value "
            f"{PREFIX}{switch} allow it"
        )
    return ""


def _reasons(spec: Spec, template: dict[str, Any], policy: PodPolicy) -> Iterator[tuple[str, str]]:
    for field in spec.pod_template.get("spec", {}):
        if not matches(field, policy.pod_template_fields):
            yield f"podTemplate.spec.{field}", "podTemplateFields"
    pod = template["spec"]
    accounts = {str(pod.get(field) or DEFAULT_ACCOUNT) for field in ("serviceAccountName", "serviceAccount")}
    for account in sorted(accounts - {DEFAULT_ACCOUNT}):
        if not matches(account, policy.service_accounts):
            yield f"service account {account}", "serviceAccounts"
    if _wants_token(pod) and not any(matches(account, policy.service_accounts) for account in accounts):
        yield f"a token of service account {min(accounts)}", "serviceAccounts"
    for name in _secrets(pod):
        if not matches(name, policy.secrets):
            yield f"Secret {name}", "secrets"
    # RDMA needs to pin memory, and what the pod gets for it is the platform's to say.
    broken = violation(template, policy.pod_security, frozenset({"IPC_LOCK"}) if spec.rdma else frozenset())
    if broken:
        yield f"pod: {broken} (Pod Security {policy.pod_security})", "podSecurity"


def matches(name: str, patterns: Iterable[str]) -> bool:
    return any(name == each or (each.endswith(ANY) and name.startswith(each.removesuffix(ANY))) for each in patterns)


def _wants_token(pod: dict[str, Any]) -> bool:
    """Of its service account, beside the platform's own."""
    volumes = [volume for volume in pod.get("volumes", ()) if volume.get("name") != TOKEN_VOLUME]
    return bool(pod.get("automountServiceAccountToken")) or any(
        key == "serviceAccountToken" for key, _ in _fields(volumes)
    )


def _secrets(pod: dict[str, Any]) -> Iterator[str]:
    """Names of the Secrets whose content would be in the pod. One to pull images with is not."""
    given = {name: value for name, value in pod.items() if name != "imagePullSecrets"}
    for key, value in _fields(given):
        if key in SECRET_REFERENCES and isinstance(value, dict):
            yield str(value.get("secretName") or value.get("name") or "")
        elif key in SECRET_NAMES and isinstance(value, str):
            yield value


def _fields(node: object) -> Iterator[tuple[str, Any]]:
    """Every field below, with its name."""
    if isinstance(node, list):
        for item in node:
            yield from _fields(item)
    if isinstance(node, dict):
        for key, value in node.items():
            yield key, value
            yield from _fields(value)
