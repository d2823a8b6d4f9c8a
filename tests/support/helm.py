"""The chart as Helm renders it."""

from __future__ import annotations

import functools
import json
import shutil
import subprocess
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).resolve().parents[2]
CHART = ROOT / "deploy/helm/megatronapp"
RELEASE, NAMESPACE = "megatronapp", "platform"

Object = dict[str, Any]

EVERYTHING = {
    "collector": {"replicas": 2},
    "detector": {"replicas": 2},
    "tls": {
        "enabled": True,
        "mutual": True,
        "certManager": {"enabled": True, "issuerRef": {"kind": "ClusterIssuer", "name": "own-ca"}},
    },
    "gateway": {
        "autoscaling": {"enabled": True},
        "ingress": {"enabled": True, "hosts": ["megatronapp.example.com"]},
    },
    "operator": {
        "replicas": 2,
        "remediation": {"limit": "Taint"},
        "backends": {"jobset": True, "coscheduling": True, "volcano": True},
    },
    "monitoring": {
        "serviceMonitor": {"enabled": True},
        "prometheusRule": {"enabled": True},
        "alertmanagerConfig": {"enabled": True},
        "dashboards": {"enabled": True},
    },
    "notifications": {
        "existingSecret": "receivers",
        **{name: {"enabled": True} for name in ("feishu", "slack", "webhook", "phone")},
        "mail": {"enabled": True, "host": "smtp.example.com", "user": "u", "from": "m@example.com", "to": ["a@b.org"]},
        "feishuSheet": {"enabled": True, "appId": "cli_1", "sheetId": "s1"},
        "heartbeat": {"enabled": True},
    },
}
"""Values with every switch on."""


class HelmError(Exception):
    """What helm said."""


def helm(*arguments: str, stdin: str = "") -> str:
    program = shutil.which("helm")
    if program is None:
        raise HelmError("helm is not installed; run: make setup-system")
    done = subprocess.run([program, *arguments], input=stdin, capture_output=True, text=True, check=False)
    if done.returncode:
        raise HelmError(done.stderr)
    return done.stdout


@functools.cache
def _rendered(values: str, flags: tuple[str, ...]) -> str:
    arguments = ("template", RELEASE, str(CHART), "--namespace", NAMESPACE, "--values", "-", *flags)
    return helm(*arguments, stdin=values)


def render(values: Object | None = None, *flags: str) -> list[Object]:
    """All objects, also those of hooks. Raises HelmError with Helm's own words."""
    documents = yaml.load_all(_rendered(json.dumps(values or {}), flags), yaml.CSafeLoader)
    return [document for document in documents if document]


def of_kind(objects: list[Object], kind: str) -> dict[str, Object]:
    """Objects of one kind by name."""
    return {found["metadata"]["name"]: found for found in objects if found["kind"] == kind}


def find(objects: list[Object], kind: str, name: str) -> Object:
    return of_kind(objects, kind)[f"{RELEASE}-{name}"]


def pods(objects: list[Object]) -> dict[str, Object]:
    """Pods and pod templates as {metadata, spec}, by their object's kind and name."""
    found = {
        f"{o['kind']}/{o['metadata']['name']}": o["spec"]["template"]
        for o in objects
        if "template" in o.get("spec", {})
    }
    return found | {f"Pod/{name}": pod for name, pod in of_kind(objects, "Pod").items()}
