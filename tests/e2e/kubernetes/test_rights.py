"""What the operator may do is what it does: nothing is missing, nothing is granted in vain."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.support.cluster import Cluster, Release

pytestmark = [pytest.mark.e2e, pytest.mark.cluster, pytest.mark.timeout(300)]


def test_the_operator_used_each_of_its_rights_and_missed_none(jobs: Cluster, release: Release) -> None:
    """What the audit log shows equals what the chart grants; test_journey and test_platform have used all of it."""
    if not jobs.is_test_cluster:
        pytest.skip("no audit log at hand")
    account = f"system:serviceaccount:{release.cluster.namespace}:{release.prefix}-operator"
    used, refused = used_rights(jobs.kubeconfig.parent / "log" / "audit.jsonl", account)

    granted = granted_rights(jobs, f"{release.prefix}-operator")

    assert refused == set()
    assert used - granted == set()
    assert granted - used == set()


def used_rights(audit: Path, account: str) -> tuple[set[tuple[str, str]], set[tuple[str, str]]]:
    """(resource, verb) of the account's requests that were allowed, and of those that were not."""
    used, refused = set(), set()
    for line in audit.read_text().splitlines():
        event = json.loads(line) if account in line else {}
        about = event.get("objectRef")
        if about and event["user"]["username"] == account:
            resource = "/".join(filter(None, (about["resource"], about.get("subresource"))))
            allowed = event["annotations"].get("authorization.k8s.io/decision") == "allow"
            (used if allowed else refused).add((resource, event["verb"]))
    return used, refused


def granted_rights(cluster: Cluster, name: str) -> set[tuple[str, str]]:
    """(resource, verb) of all roles of the operator, wherever they are."""
    found = json.loads(cluster.kubectl("get", "roles,clusterroles", "-A", "-o", "json"))["items"]
    rules = [rule for role in found if name in role["metadata"]["name"] for rule in role.get("rules") or ()]
    return {(what, verb) for rule in rules for what in rule.get("resources", ()) for verb in rule["verbs"]}
