"""Which connections a set of NetworkPolicies lets through, by Kubernetes' rules."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from ipaddress import ip_address, ip_network
from typing import Any


@dataclass(frozen=True)
class Endpoint:
    """A pod, or with `address` something outside the cluster."""

    name: str
    namespace: str = ""
    labels: Mapping[str, str] | None = None
    address: str = ""


def allowed(policies: Iterable[Mapping[str, Any]], source: Endpoint, target: Endpoint, port: int) -> bool:
    """Whether a TCP connection gets through: the source's egress and the target's ingress must both let it."""
    policies = list(policies)
    return _passes(policies, "Egress", source, target, port) and _passes(policies, "Ingress", target, source, port)


def _passes(policies: list[Mapping[str, Any]], direction: str, own: Endpoint, other: Endpoint, port: int) -> bool:
    mine = [p for p in policies if direction in p["spec"]["policyTypes"] and _selects(p, own)]
    if not mine:
        return True
    side, peers = ("egress", "to") if direction == "Egress" else ("ingress", "from")
    rules = [rule for policy in mine for rule in policy["spec"].get(side) or []]
    return any(_port_fits(rule, port) and _peer_fits(rule.get(peers), own, other) for rule in rules)


def _selects(policy: Mapping[str, Any], pod: Endpoint) -> bool:
    in_namespace = pod.labels is not None and policy["metadata"]["namespace"] == pod.namespace
    return in_namespace and matches(policy["spec"]["podSelector"], pod.labels or {})


def _port_fits(rule: Mapping[str, Any], port: int) -> bool:
    ports = rule.get("ports")
    return not ports or any(p["port"] == port and p.get("protocol", "TCP") == "TCP" for p in ports)


def _peer_fits(peers: list[Mapping[str, Any]] | None, own: Endpoint, other: Endpoint) -> bool:
    return not peers or any(_is_peer(peer, own, other) for peer in peers)


def _is_peer(peer: Mapping[str, Any], own: Endpoint, other: Endpoint) -> bool:
    if "ipBlock" in peer:
        return bool(other.address) and ip_address(other.address) in ip_network(peer["ipBlock"]["cidr"])
    if other.labels is None:
        return False
    if "namespaceSelector" in peer:
        here = matches(peer["namespaceSelector"], {"kubernetes.io/metadata.name": other.namespace})
    else:
        here = other.namespace == own.namespace
    return here and matches(peer.get("podSelector", {}), other.labels)


def matches(selector: Mapping[str, Any], labels: Mapping[str, str]) -> bool:
    """A label selector with matchLabels and the expressions In and Exists."""
    exact = all(labels.get(key) == value for key, value in (selector.get("matchLabels") or {}).items())
    return exact and all(_expression(e, labels) for e in selector.get("matchExpressions") or [])


def _expression(expression: Mapping[str, Any], labels: Mapping[str, str]) -> bool:
    if expression["operator"] == "Exists":
        return expression["key"] in labels
    if expression["operator"] == "In":
        return labels.get(expression["key"]) in expression["values"]
    raise ValueError(f"operator {expression['operator']} is not understood here")
