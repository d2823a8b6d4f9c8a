"""Kubernetes' Pod Security Standards, version 1.34, on a pod that is about to be made. Pure.

https://kubernetes.io/docs/concepts/security/pod-security-standards/ Each rule yields what breaks it, as a path under
the pod's spec. The pod may be anything: what is of the wrong kind breaks a rule, too.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Literal

Level = Literal["restricted", "baseline", "privileged"]
Body = dict[str, Any]

HOST_NAMESPACES = ("hostNetwork", "hostPID", "hostIPC")
RESTRICTED_VOLUMES = frozenset(
    {"configMap", "csi", "downwardAPI", "emptyDir", "ephemeral", "persistentVolumeClaim", "projected", "secret"}
)
BASELINE_CAPABILITIES = frozenset(
    {"AUDIT_WRITE", "CHOWN", "DAC_OVERRIDE", "FOWNER", "FSETID", "KILL", "MKNOD", "NET_BIND_SERVICE", "SETFCAP"}
    | {"SETGID", "SETPCAP", "SETUID", "SYS_CHROOT"}
)
RESTRICTED_CAPABILITIES = frozenset({"NET_BIND_SERVICE"})
SELINUX_TYPES = frozenset({"", "container_t", "container_init_t", "container_kvm_t", "container_engine_t"})
SYSCTLS = frozenset(
    {"kernel.shm_rmid_forced", "net.ipv4.ip_local_port_range", "net.ipv4.ip_unprivileged_port_start"}
    | {"net.ipv4.tcp_syncookies", "net.ipv4.ping_group_range", "net.ipv4.ip_local_reserved_ports"}
    | {"net.ipv4.tcp_keepalive_time", "net.ipv4.tcp_fin_timeout", "net.ipv4.tcp_keepalive_intvl"}
    | {"net.ipv4.tcp_keepalive_probes", "net.ipv4.tcp_rmem", "net.ipv4.tcp_wmem"}
)
APPARMOR_ANNOTATION = "container.apparmor.security.beta.kubernetes.io/"
CONTAINERS = ("initContainers", "containers", "ephemeralContainers")
HOOKS = ("livenessProbe", "readinessProbe", "startupProbe")


def violation(template: Body, level: Level, capabilities: frozenset[str] = frozenset()) -> str:
    """The first thing that the level forbids; "" for a pod that keeps it. `capabilities` may be added all the same."""
    if level == "privileged":
        return ""
    try:
        return next(_violations(template, level == "restricted", capabilities), "")
    except (AttributeError, TypeError):
        return "a field of the wrong type"


def _violations(template: Body, restricted: bool, capabilities: frozenset[str]) -> Iterator[str]:
    spec = template["spec"]
    pod = spec.get("securityContext") or {}
    yield from (name for name in HOST_NAMESPACES if spec.get(name))
    for volume in spec.get("volumes") or ():
        kinds = volume.keys() - {"name"}
        if "hostPath" in kinds or (restricted and not kinds <= RESTRICTED_VOLUMES):
            yield f"volumes.{volume.get('name')} of type {', '.join(sorted(kinds))}"
    for name, value in ((template.get("metadata") or {}).get("annotations") or {}).items():
        if name.startswith(APPARMOR_ANNOTATION) and value != "runtime/default" and not value.startswith("localhost/"):
            yield f"annotation {name} {value}"
    for sysctl in pod.get("sysctls") or ():
        if sysctl.get("name") not in SYSCTLS:
            yield f"securityContext.sysctls {sysctl.get('name')}"
    yield from _either_level(pod, "securityContext")
    for kind in CONTAINERS:
        for container in spec.get(kind) or ():
            where = f"{kind}.{container.get('name')}"
            yield from _container(container, where, restricted, capabilities)
            if restricted:
                yield from _restricted(container, pod, where)


def _either_level(context: Body, where: str) -> Iterator[str]:
    """What a pod's and a container's security context must not hold."""
    selinux = context.get("seLinuxOptions") or {}
    if (selinux.get("type") or "") not in SELINUX_TYPES or selinux.get("user") or selinux.get("role"):
        yield f"{where}.seLinuxOptions"
    if (context.get("appArmorProfile") or {}).get("type") == "Unconfined":
        yield f"{where}.appArmorProfile.type Unconfined"
    if (context.get("seccompProfile") or {}).get("type") == "Unconfined":
        yield f"{where}.seccompProfile.type Unconfined"
    if (context.get("windowsOptions") or {}).get("hostProcess"):
        yield f"{where}.windowsOptions.hostProcess"


def _container(container: Body, where: str, restricted: bool, capabilities: frozenset[str]) -> Iterator[str]:
    context = container.get("securityContext") or {}
    at = f"{where}.securityContext"
    yield from _either_level(context, at)
    if context.get("privileged"):
        yield f"{at}.privileged"
    if context.get("procMount") not in {None, "", "Default"}:
        yield f"{at}.procMount"
    allowed = (RESTRICTED_CAPABILITIES if restricted else BASELINE_CAPABILITIES) | capabilities
    added = set((context.get("capabilities") or {}).get("add") or ()) - allowed
    if added:
        yield f"{at}.capabilities.add {', '.join(sorted(map(str, added)))}"
    if any(port.get("hostPort") for port in container.get("ports") or ()):
        yield f"{where}.ports with a hostPort"
    lifecycle = container.get("lifecycle") or {}
    handlers = [*(container.get(name) for name in HOOKS), lifecycle.get("postStart"), lifecycle.get("preStop")]
    for handler in filter(None, handlers):
        if any((handler.get(kind) or {}).get("host") for kind in ("httpGet", "tcpSocket")):
            yield f"{where} with a probe or hook of another host"


def _restricted(container: Body, pod: Body, where: str) -> Iterator[str]:
    """What a container's own context must say, or the pod's for all of them."""
    context = container.get("securityContext") or {}
    at = f"{where}.securityContext"
    if context.get("allowPrivilegeEscalation") is not False:
        yield f"{at}.allowPrivilegeEscalation not false"
    if "ALL" not in ((context.get("capabilities") or {}).get("drop") or ()):
        yield f"{at}.capabilities.drop without ALL"
    if _own_or_pods(context, pod, "runAsNonRoot") is not True:
        yield f"{at}.runAsNonRoot not true"
    if context.get("runAsUser") == 0 or pod.get("runAsUser") == 0:
        yield f"{at}.runAsUser 0"
    if (_own_or_pods(context, pod, "seccompProfile") or {}).get("type") not in {"RuntimeDefault", "Localhost"}:
        yield f"{at}.seccompProfile neither RuntimeDefault nor Localhost"


def _own_or_pods(context: Body, pod: Body, key: str) -> Any:
    return context[key] if context.get(key) is not None else pod.get(key)
