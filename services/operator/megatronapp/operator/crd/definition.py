"""The CustomResourceDefinition: names, printer columns, and the schema with its rules."""

from __future__ import annotations

from typing import Any

from megatronapp.core.trainingjob import Spec, Status
from megatronapp.operator.crd.rules import OBJECT_RULES, SPEC_RULES, TRANSITION_RULES, validations
from megatronapp.operator.crd.schema import structural, without_defaults

GROUP = "megatronapp.io"
VERSION = "v1alpha1"
KIND = "TrainingJob"
PLURAL = "trainingjobs"

LIST_KEYS = {"storage": "name", "env": "name"}
"""Lists of the spec whose items are told apart by a key, so that appliers merge them."""

COLUMNS = [
    ("State", "string", ".status.phase", 0, "Where the job stands"),
    ("Nodes", "string", ".status.nodes.summary", 0, "Pods that run, of those wanted"),
    ("Progress", "string", ".status.progress.summary", 0, "Steps done, of all"),
    ("Iter-ms", "integer", ".status.progress.iterationMillis", 0, "Median time of a step"),
    ("Slow", "string", ".status.findings.summary", 0, "Ranks found slow or hanging, and their node"),
    ("Restarts", "integer", ".status.restarts", 0, "Attempts that failed"),
    ("Age", "date", ".metadata.creationTimestamp", 0, ""),
    ("Attempt", "integer", ".status.attempt", 1, "Counts every start, also after suspend or a move"),
    ("Backend", "string", ".status.backend.name", 1, "The Job of the newest attempt"),
    ("Queue", "string", ".spec.scheduling.queue", 1, "Kueue's LocalQueue"),
    ("Excluded", "string", ".status.excludedNodes[*].name", 1, "Nodes the job keeps away from"),
]


def definition() -> dict[str, Any]:
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": f"{PLURAL}.{GROUP}"},
        "spec": {
            "group": GROUP,
            "scope": "Namespaced",
            "names": {
                "kind": KIND,
                "listKind": f"{KIND}List",
                "plural": PLURAL,
                "singular": "trainingjob",
                "shortNames": ["tj"],
                "categories": ["all", "ml"],
            },
            "versions": [_version()],
        },
    }


def _version() -> dict[str, Any]:
    return {
        "name": VERSION,
        "served": True,
        "storage": True,
        "subresources": {"status": {}},
        "additionalPrinterColumns": [_column(*column) for column in COLUMNS],
        "schema": {"openAPIV3Schema": _object_schema()},
    }


def _column(name: str, kind: str, path: str, priority: int, description: str) -> dict[str, Any]:
    column = {"name": name, "type": kind, "jsonPath": path, "priority": priority, "description": description}
    return {key: value for key, value in column.items() if value not in ("", 0)}


def _object_schema() -> dict[str, Any]:
    spec = structural(Spec)
    for name, key in LIST_KEYS.items():
        spec["properties"][name] |= {"x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": [key]}
    spec["x-kubernetes-validations"] = validations(SPEC_RULES + TRANSITION_RULES)
    status = without_defaults(structural(Status))
    status["properties"]["conditions"] |= {"x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["type"]}
    return {
        "type": "object",
        "description": "A training run: what to train, on how many nodes, and what to do when something goes wrong.",
        "required": ["spec"],
        "x-kubernetes-validations": validations(OBJECT_RULES),
        "properties": {
            "apiVersion": {"type": "string"},
            "kind": {"type": "string"},
            "metadata": {"type": "object"},
            "spec": spec,
            "status": status,
        },
    }
