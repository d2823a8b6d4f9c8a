"""Kubernetes' Pod Security Standard "restricted", version 1.34, as far as pods of this project can break it."""

from __future__ import annotations

from typing import Any

VOLUMES = {
    "configMap", "csi", "downwardAPI", "emptyDir", "ephemeral", "persistentVolumeClaim", "projected", "secret",
}  # fmt: skip


def violations(spec: dict[str, Any]) -> list[str]:
    """What a pod's spec does that the standard forbids."""
    pod = spec.get("securityContext", {})
    found = [f"{key} is on" for key in ("hostNetwork", "hostPID", "hostIPC") if spec.get(key)]
    found += [f"volume {v['name']}" for v in spec.get("volumes", []) if not VOLUMES & v.keys()]
    for container in (*spec.get("initContainers", []), *spec["containers"]):
        found += [f"{container['name']}: {text}" for text in _container(container, pod)]
    return found


def _container(container: dict[str, Any], pod: dict[str, Any]) -> list[str]:
    own = container.get("securityContext", {})
    both = pod | own
    capabilities = own.get("capabilities", {})
    rules = {
        "privileged": not own.get("privileged"),
        "escalation": own.get("allowPrivilegeEscalation") is False,
        "root": both.get("runAsNonRoot") is True and both.get("runAsUser") != 0,
        "seccomp": both.get("seccompProfile", {}).get("type") in {"RuntimeDefault", "Localhost"},
        "capabilities kept": capabilities.get("drop") == ["ALL"],
        "capabilities added": set(capabilities.get("add", [])) <= {"NET_BIND_SERVICE"},
        "host port": not any("hostPort" in port for port in container.get("ports", [])),
    }
    return [rule for rule, kept in rules.items() if not kept]
