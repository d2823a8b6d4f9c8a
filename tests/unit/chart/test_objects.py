"""The rendered objects: valid, restricted, and fitting together."""

from __future__ import annotations

import base64
import json
from typing import Any

import pytest
import yaml

from tests.support.environment import SETTINGS, load
from tests.support.helm import CHART, EVERYTHING, NAMESPACE, Object, find, of_kind, pods, render
from tests.support.kubernetes import validate
from tests.support.podsecurity import violations
from tests.support.scrapes import target_labels

CASES = {"defaults": {}, "everything": EVERYTHING} | {
    path.stem: yaml.safe_load(path.read_text()) for path in sorted((CHART / "ci").glob("*-values.yaml"))
}
OF_OTHERS = {"CustomResourceDefinition", "Certificate", "ServiceMonitor", "PrometheusRule", "AlertmanagerConfig"}


@pytest.fixture(params=CASES.values(), ids=CASES.keys())
def values(request: pytest.FixtureRequest) -> Any:
    return request.param


@pytest.fixture
def objects(values: Any) -> list[Object]:
    return render(values)


@pytest.mark.parametrize("version", ["1.29", "1.37"])
def test_every_object_is_valid_for_the_oldest_and_the_newest_kubernetes(version: str) -> None:
    for found in render(EVERYTHING, "--kube-version", f"{version}.0"):
        if found["kind"] not in OF_OTHERS:
            validate(found, version)


def test_no_two_objects_are_the_same(objects: list[Object]) -> None:
    names = [(o["kind"], o["metadata"].get("namespace"), o["metadata"]["name"]) for o in objects]

    assert len(names) == len(set(names))


def test_all_pods_keep_pod_security_restricted(objects: list[Object]) -> None:
    for name, pod in pods(objects).items():
        assert violations(pod["spec"]) == [], name
        for container in pod["spec"]["containers"]:
            assert container["securityContext"]["readOnlyRootFilesystem"] is True
            assert container["resources"]["limits"]["memory"]


def test_only_who_asks_the_api_server_has_a_token(objects: list[Object]) -> None:
    with_token = {
        pod["metadata"]["labels"]["app.kubernetes.io/component"]
        for pod in pods(objects).values()
        if pod["spec"]["automountServiceAccountToken"]
    }

    assert with_token == {"collector", "gateway", "operator"}


def test_every_service_finds_exactly_one_workload_and_its_ports(objects: list[Object]) -> None:
    workloads = [pod for name, pod in pods(objects).items() if not name.startswith("Pod/")]

    for service in of_kind(objects, "Service").values():
        selected = [w for w in workloads if service["spec"]["selector"].items() <= w["metadata"]["labels"].items()]
        assert len(selected) == 1
        ports = {port["name"] for container in selected[0]["spec"]["containers"] for port in container["ports"]}
        assert {port["targetPort"] for port in service["spec"]["ports"]} <= ports


def test_every_reference_resolves(values: Any, objects: list[Object]) -> None:
    made = {(o["kind"], o["metadata"]["name"]) for o in objects}
    given = {("Secret", name) for name in _strings(values)}
    for pod in pods(objects).values():
        spec = pod["spec"]
        if "serviceAccountName" in spec:
            assert ("ServiceAccount", spec["serviceAccountName"]) in made
        for volume in spec.get("volumes", []):
            if "configMap" in volume:
                assert ("ConfigMap", volume["configMap"]["name"]) in made
        for container in spec["containers"]:
            for variable in container.get("env", []):
                reference = variable.get("valueFrom", {}).get("secretKeyRef")
                assert reference is None or ("Secret", reference["name"]) in made | given
    for kind in ("RoleBinding", "ClusterRoleBinding"):
        for binding in of_kind(objects, kind).values():
            assert (binding["roleRef"]["kind"], binding["roleRef"]["name"]) in made
            assert all(("ServiceAccount", subject["name"]) in made for subject in binding["subjects"])


def _strings(value: Any) -> set[str]:
    if isinstance(value, dict):
        return {text for part in value.values() for text in _strings(part)}
    return {value} if isinstance(value, str) else set()


def test_every_secret_key_that_is_read_is_made() -> None:
    objects = render()
    secrets = {name: secret["data"].keys() for name, secret in of_kind(objects, "Secret").items()}

    for pod in pods(objects).values():
        for container in pod["spec"]["containers"]:
            for variable in container.get("env", []):
                reference = variable.get("valueFrom", {}).get("secretKeyRef")
                assert reference is None or reference["key"] in secrets[reference["name"]]


def test_secrets_are_random_and_long() -> None:
    data = find(render(), "Secret", "auth")["data"]

    tokens = [base64.b64decode(value) for value in data.values()]

    assert len(set(tokens)) == len(tokens) == 6
    assert all(len(token) >= 32 for token in tokens)


def test_budgets_only_where_there_are_several_replicas() -> None:
    assert not of_kind(render(), "PodDisruptionBudget")
    assert of_kind(render(EVERYTHING), "PodDisruptionBudget").keys() == {
        f"megatronapp-{component}" for component in ("collector", "detector", "gateway", "operator")
    }


def test_detectors_have_names_only_where_several_share_the_jobs() -> None:
    one, two = render(), render({"detector": {"replicas": 2}})

    detectors = [of_kind(objects, "Deployment")["megatronapp-detector"]["spec"] for objects in (one, two)]

    assert [spec["replicas"] for spec in detectors] == [1, 2]
    named = ["MEGATRONAPP_DETECTOR_REPLICA" in env_of(objects, "detector") for objects in (one, two)]
    assert named == [False, True]


def test_only_the_gateway_scales_by_itself_and_then_sets_no_replicas() -> None:
    objects = render(EVERYTHING)

    scaled = [hpa["spec"]["scaleTargetRef"]["name"] for hpa in of_kind(objects, "HorizontalPodAutoscaler").values()]

    assert scaled == ["megatronapp-gateway"]
    assert "replicas" not in find(objects, "Deployment", "gateway")["spec"]
    assert not of_kind(render(), "HorizontalPodAutoscaler")


def env_of(objects: list[Object], component: str) -> dict[str, str]:
    container = find(objects, "Deployment", component)["spec"]["template"]["spec"]["containers"][0]
    return {entry["name"]: entry.get("value", "") for entry in container["env"]}


def test_every_shard_has_a_name_that_gateway_and_operator_know() -> None:
    objects = render({"collector": {"replicas": 3}})
    shards = [f"megatronapp-collector-{i}.megatronapp-collector.{NAMESPACE}.svc:7601" for i in range(3)]

    gateway, operator = env_of(objects, "gateway"), env_of(objects, "operator")

    assert json.loads(gateway["MEGATRONAPP_GATEWAY_COLLECTOR_ADDRESSES"]) == shards
    assert int(operator["MEGATRONAPP_OPERATOR_COLLECTOR_SHARDS"]) == 3
    assert operator["MEGATRONAPP_OPERATOR_COLLECTOR_ADDRESS"].format(shard=2) == shards[2]


def test_the_definition_stays_when_the_release_goes_unless_told_otherwise() -> None:
    kept, dropped = (of_kind(render(values), "CustomResourceDefinition") for values in ({}, {"crds": {"keep": False}}))

    assert kept.keys() == dropped.keys() == {"trainingjobs.megatronapp.io"}
    assert kept["trainingjobs.megatronapp.io"]["metadata"]["annotations"]["helm.sh/resource-policy"] == "keep"
    assert "annotations" not in dropped["trainingjobs.megatronapp.io"]["metadata"]
    assert not of_kind(render({"crds": {"install": False}}), "CustomResourceDefinition")


def test_the_operator_may_touch_nodes_only_where_that_is_allowed() -> None:
    def node_verbs(values: Any) -> set[str]:
        roles = of_kind(render(values), "ClusterRole").values()
        rules = [rule for role in roles for rule in role["rules"] if {"nodes", "nodes/status"} & set(rule["resources"])]
        return {verb for rule in rules for verb in rule["verbs"]}

    assert node_verbs({}) <= {"get", "list", "watch"}
    assert "patch" in node_verbs({"operator": {"remediation": {"limit": "Taint"}}})


def test_named_namespaces_get_roles_of_their_own() -> None:
    objects = render({"watchNamespaces": ["team-a", "team-b"]})
    roles = {(role["metadata"]["namespace"], role["metadata"]["name"]) for role in objects if role["kind"] == "Role"}
    cluster_wide = [rule for role in of_kind(objects, "ClusterRole").values() for rule in role["rules"]]

    assert {("team-a", "megatronapp-operator"), ("team-b", "megatronapp-operator")} <= roles
    assert not any("jobs" in rule["resources"] for rule in cluster_wide)


def test_images_take_registry_tag_and_digest() -> None:
    digest = "sha256:" + "0" * 64
    objects = render({"global": {"imageRegistry": "mirror:5000"}, "detector": {"image": {"digest": digest}}})

    images = {name: pod["spec"]["containers"][0]["image"] for name, pod in pods(objects).items()}

    assert images["Deployment/megatronapp-detector"] == f"mirror:5000/megatronapp/detector@{digest}"
    assert images["Deployment/megatronapp-gateway"] == "mirror:5000/megatronapp/scope-gateway:0.1.0"
    assert all(image.startswith("mirror:5000/") for image in images.values())


def test_helm_test_tries_every_edge_inside_the_release() -> None:
    hooks = of_kind(render(), "Pod").values()
    commands = " ".join(pod["spec"]["containers"][0]["command"][-1] for pod in hooks)

    assert all(pod["metadata"]["annotations"]["helm.sh/hook"] == "test" for pod in hooks)
    for target in ("collector.platform.svc:7601", "redis.platform.svc:6379", "gateway.platform.svc:8080"):
        assert target in commands
    assert not of_kind(render({"tests": {"enabled": False}}), "Pod")


def test_monitoring_objects_only_when_asked_for() -> None:
    assert not {o["kind"] for o in render()} & {"ServiceMonitor", "PrometheusRule", "AlertmanagerConfig"}
    assert {"ServiceMonitor", "PrometheusRule", "AlertmanagerConfig"} <= {o["kind"] for o in render(EVERYTHING)}


def test_the_service_monitor_finds_every_metrics_port() -> None:
    objects = render(EVERYTHING)
    monitor = of_kind(objects, "ServiceMonitor")["megatronapp"]
    selector = monitor["spec"]["selector"]["matchLabels"].items()

    scraped = {
        name
        for name, service in of_kind(objects, "Service").items()
        if selector <= service["metadata"]["labels"].items()
        and any(port["name"] == "http" for port in service["spec"]["ports"])
    }

    assert scraped == {f"megatronapp-{c}" for c in ("collector", "detector", "gateway", "operator")}
    assert monitor["spec"]["endpoints"][0]["honorLabels"] is True
    assert target_labels() == {
        component: {"part_of": "megatronapp", "component": component}
        for component in ("collector", "detector", "gateway", "operator")
    }


@pytest.mark.parametrize("service", SETTINGS)
def test_what_the_chart_tells_a_service_is_understood(service: str, monkeypatch: pytest.MonkeyPatch) -> None:
    container = next(
        pod["spec"]["containers"][0]
        for pod in pods(render(EVERYTHING)).values()
        if pod["metadata"]["labels"]["app.kubernetes.io/component"] == service
    )
    secrets = {"feishu-url", "slack-url", "webhook-url", "phone-url"}
    environment = {
        entry["name"]: entry.get("value")
        or ("https://example.com" if entry["valueFrom"].get("secretKeyRef", {}).get("key") in secrets else "a-value")
        for entry in container["env"]
    }

    settings = load(service, environment, monkeypatch)

    assert settings.host == "0.0.0.0"
    assert settings.http_port == 9090
