"""The ValidatingAdmissionPolicy of TrainingJobs: where it is made, whom it covers, what it takes from the values."""

from __future__ import annotations

from typing import Any

import pytest

from tests.support.helm import NAMESPACE, Object, of_kind, render

NAME = f"{NAMESPACE}-megatronapp-jobs"


def policy(jobs: dict[str, Any] | None = None, version: str = "1.34.0", **values: Any) -> tuple[Object, Object] | None:
    """The policy and its binding."""
    objects = render({"operator": {"jobs": jobs or {}}, **values}, "--kube-version", version)
    found = [of_kind(objects, kind).get(NAME) for kind in (KIND, f"{KIND}Binding")]
    return (found[0], found[1]) if found[0] and found[1] else None


KIND = "ValidatingAdmissionPolicy"


def rules(jobs: dict[str, Any]) -> str:
    found = policy(jobs)
    assert found is not None
    return "\n".join(rule["expression"] for rule in found[0]["spec"]["validations"])


def test_it_is_made_where_kubernetes_knows_it_and_nobody_has_switched_it_off() -> None:
    assert policy() is not None
    assert policy(version="1.30.0") is not None
    assert policy(version="1.29.9") is None
    assert policy({"admissionPolicy": False}) is None


def test_it_covers_the_namespaces_that_are_watched() -> None:
    everywhere, named = policy(), policy(watchNamespaces=["team-a", "team-b"])
    assert everywhere is not None
    assert named is not None

    assert "matchResources" not in everywhere[1]["spec"]
    selector = named[1]["spec"]["matchResources"]["namespaceSelector"]["matchExpressions"]
    assert selector == [{"key": "kubernetes.io/metadata.name", "operator": "In", "values": ["team-a", "team-b"]}]


def test_it_refuses_and_leaves_alone_what_is_not_changed_or_not_ours() -> None:
    found = policy()
    assert found is not None

    conditions = {each["name"]: each["expression"] for each in found[0]["spec"]["matchConditions"]}
    assert found[1]["spec"]["validationActions"] == ["Deny"]
    assert conditions["new"].startswith("oldObject == null || [")
    assert "megatronapp.io/operator" in conditions["ours"]


@pytest.mark.parametrize(
    ("jobs", "rule"),
    [
        ({"secrets": ["wandb", "hf-*"]}, '(false || s == "wandb" || s.startsWith("hf-"))'),
        ({"serviceAccounts": ["*"]}, '(false || a.startsWith(""))'),
        ({"podTemplateFields": ["hostNetwork"]}, 'f == "hostNetwork"'),
    ],
)
def test_names_and_beginnings_become_expressions(jobs: dict[str, Any], rule: str) -> None:
    assert rule in rules(jobs)


def test_without_a_pod_security_standard_nothing_of_the_node_is_refused() -> None:
    assert "hostPath" in rules({"podSecurity": "baseline"})
    assert "hostPath" not in rules({"podSecurity": "privileged"})


def test_every_refusal_names_the_value_that_allows_it() -> None:
    found = policy()
    assert found is not None

    for rule in found[0]["spec"]["validations"]:
        assert "operator.jobs." in rule["message"]
