"""What the operator may do, and what it has done."""

from __future__ import annotations

import json
from pathlib import Path

from tests.support.cluster import Cluster


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
