"""The rendered NetworkPolicies let the documented edges through, and no other."""

from __future__ import annotations

from itertools import product

import pytest

from tests.support.helm import EVERYTHING, NAMESPACE, RELEASE, find, of_kind, pods, render
from tests.support.networkpolicy import Endpoint, allowed

PORTS = (22, 53, 443, 2379, 6379, 6443, 7601, 7602, 8080, 9090)

PEOPLE = Endpoint("people", address="203.0.113.9")
RECEIVER = Endpoint("receiver", address="198.51.100.7")
API_SERVER = Endpoint("apiserver", address="10.0.0.1")
TRAINING = Endpoint("training", "team-a", {"megatronapp.io/training-job": "gpt", "app": "anything"})
STRANGER = Endpoint("stranger", "team-b", {"app": "web"})
NEIGHBOUR = Endpoint("neighbour", NAMESPACE, {"app": "web"})
PROMETHEUS = Endpoint("prometheus", "monitoring", {"app.kubernetes.io/name": "prometheus"})
ALERTMANAGER = Endpoint("alertmanager", "monitoring", {"app.kubernetes.io/name": "alertmanager"})
OUTSIDERS = (PEOPLE, RECEIVER, API_SERVER, TRAINING, STRANGER, NEIGHBOUR, PROMETHEUS, ALERTMANAGER)

SERVICES = ("collector", "detector", "gateway", "operator")
OUT = ("people", "receiver", "apiserver")
"""All three are addresses outside the cluster: a policy knows them by port alone."""

INSIDE = {
    ("gateway", "collector", 7601),
    ("collector", "redis", 6379),
    ("detector", "redis", 6379),
    ("gateway", "redis", 6379),
    ("operator", "gateway", 8080),
    ("training", "collector", 7601),
    ("training", "gateway", 7602),
    *(("prometheus", service, 9090) for service in SERVICES),
    *(("test", service, 9090) for service in SERVICES),
    ("test", "collector", 7601),
    ("test", "gateway", 8080),
    ("test", "redis", 6379),
    # The page is for everybody, Alertmanager's webhook among them.
    *((name, "gateway", 8080) for name in ("people", "receiver", "apiserver", "training", "stranger", "neighbour")),
    *((name, "gateway", 8080) for name in ("prometheus", "alertmanager")),
}
TO_API_SERVER = {
    (source, out, port) for source in ("collector", "gateway", "operator") for out in OUT for port in (443, 6443)
}
TO_RECEIVERS = {("gateway", out, 443) for out in OUT}


def members(values: dict[str, object]) -> dict[str, Endpoint]:
    """The release's pods, one a component, and everybody else."""
    found = {}
    for pod in pods(render(values)).values():
        labels = pod["metadata"]["labels"]
        component = labels["app.kubernetes.io/component"]
        found[component] = Endpoint(component, NAMESPACE, labels)
    return found | {other.name: other for other in OUTSIDERS}


def edges(values: dict[str, object]) -> set[tuple[str, str, int]]:
    """All connections that get through and begin or end in the release; name resolution left out."""
    policies = list(of_kind(render(values), "NetworkPolicy").values())
    everybody = members(values)
    own = everybody.keys() - {other.name for other in OUTSIDERS}
    return {
        (a.name, b.name, port)
        for a, b, port in product(everybody.values(), everybody.values(), PORTS)
        if a is not b and own & {a.name, b.name} and port != 53 and allowed(policies, a, b, port)
    }


@pytest.mark.parametrize("values", [{}, EVERYTHING], ids=["defaults", "everything"])
def test_exactly_the_documented_edges_pass(values: dict[str, object]) -> None:
    assert edges(values) == INSIDE | TO_API_SERVER | TO_RECEIVERS


@pytest.mark.parametrize("values", [{}, EVERYTHING], ids=["defaults", "everything"])
def test_replicas_of_the_gateway_reach_each_other_for_what_they_pass_on(values: dict[str, object]) -> None:
    policies = list(of_kind(render(values), "NetworkPolicy").values())
    gateway = members(values)["gateway"]

    assert {port for port in PORTS if allowed(policies, gateway, gateway, port)} == {7602, 8080}


def test_every_pod_may_resolve_names() -> None:
    policies = of_kind(render(), "NetworkPolicy")

    for policy in policies.values():
        assert any({"port": 53, "protocol": "UDP"} in rule["ports"] for rule in policy["spec"]["egress"])


def test_every_pod_may_ask_the_dns_cache_of_its_node() -> None:
    """NodeLocal DNSCache listens at a link-local address, which no selector of pods covers."""
    objects = render()
    policies, cache = list(of_kind(objects, "NetworkPolicy").values()), Endpoint("cache", address="169.254.20.10")
    metadata = Endpoint("metadata", address="169.254.169.254")

    for name, pod in pods(objects).items():
        endpoint = Endpoint(name, NAMESPACE, pod["metadata"]["labels"])
        assert allowed(policies, endpoint, cache, 53), name
        assert not allowed(policies, endpoint, metadata, 53), name


def test_named_people_keep_others_from_the_page_but_not_alertmanager_and_operator() -> None:
    people = [{"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "ingress-nginx"}}}]

    passing = {
        source
        for source, target, port in edges({"networkPolicy": {"people": people}})
        if (target, port) == ("gateway", 8080)
    }

    assert passing == {"alertmanager", "operator", "test"}


def test_an_api_server_and_receivers_that_are_named_are_the_only_ones_outside() -> None:
    policy = {"apiServer": {"cidrs": ["10.0.0.1/32"], "ports": [6443]}, "receivers": {"cidrs": ["198.51.100.0/24"]}}

    found = edges(EVERYTHING | {"networkPolicy": policy})

    assert {edge for edge in found if edge[1] in OUT} == {
        *((source, "apiserver", 6443) for source in ("collector", "gateway", "operator")),
        ("gateway", "receiver", 443),
    }


def test_an_external_redis_is_reached_by_its_port_alone() -> None:
    values = {"redis": {"enabled": False}, "externalRedis": {"url": "redis://cache:6380", "port": 6380}}
    policies = of_kind(render(values), "NetworkPolicy")

    assert f"{RELEASE}-redis" not in policies
    egress = policies[f"{RELEASE}-detector"]["spec"]["egress"]
    assert {"ports": [{"port": 6380, "protocol": "TCP"}]} in egress


def test_without_policies_there_are_none() -> None:
    assert not of_kind(render({"networkPolicy": {"enabled": False}}), "NetworkPolicy")


def test_a_heartbeat_alone_opens_the_way_to_its_service() -> None:
    def ways(enabled: bool) -> str:
        notifications = {"existingSecret": "receivers", "heartbeat": {"enabled": enabled}}
        objects = render({"notifications": notifications, "networkPolicy": {"receivers": {"ports": [8443]}}})
        return str(find(objects, "NetworkPolicy", "gateway")["spec"]["egress"])

    assert "8443" in ways(True)
    assert "8443" not in ways(False)
