"""Where objects live on the API server."""

from __future__ import annotations

from typing import Any

from megatronapp.operator.crd.definition import GROUP, PLURAL, VERSION
from megatronapp.operator.kinds import Kind
from megatronapp.operator.names import Key

PLURALS = {
    "Job": "jobs",
    "Service": "services",
    "NetworkPolicy": "networkpolicies",
    "PodGroup": "podgroups",
    "JobSet": "jobsets",
}
VERSIONS = {
    "Job": "batch/v1",
    "Service": "v1",
    "NetworkPolicy": "networking.k8s.io/v1",
    "JobSet": "jobset.x-k8s.io/v1alpha2",
}


def listing(kind: Kind, namespace: str | None) -> str:
    """Where objects of this kind are listed; None: of all namespaces."""
    version = f"{kind.group}/{kind.version}" if kind.group else kind.version
    return _under(version, namespace, kind.plural) if namespace else f"{_root(version)}/{kind.plural}"


def collection(body: dict[str, Any]) -> str:
    """Where an object of this kind is made."""
    return _under(body["apiVersion"], body["metadata"]["namespace"], PLURALS[body["kind"]])


def job(namespace: str, name: str) -> str:
    return f"{_under('batch/v1', namespace, 'jobs')}/{name}"


def child(kind: str, namespace: str, name: str) -> str:
    """An object of one of the kinds that can be deleted."""
    return f"{_under(VERSIONS[kind], namespace, PLURALS[kind])}/{name}"


def events(namespace: str) -> str:
    return _under("v1", namespace, "events")


def status(key: Key) -> str:
    return f"{_under(f'{GROUP}/{VERSION}', key.namespace, PLURAL)}/{key.name}/status"


def node(name: str) -> str:
    return f"/api/v1/nodes/{name}"


def leases(namespace: str) -> str:
    return _under("coordination.k8s.io/v1", namespace, "leases")


def _under(version: str, namespace: str, plural: str) -> str:
    return f"{_root(version)}/namespaces/{namespace}/{plural}"


def _root(version: str) -> str:
    return f"{'/apis' if '/' in version else '/api'}/{version}"
