"""Where a job's pods may and should run."""

from __future__ import annotations

from typing import Any

from megatronapp.operator import names
from megatronapp.operator.render.plan import Plan

NODE_LOST_SECONDS = 30
"""A pod on a node that does not answer is given up after so long; Kubernetes would wait for five minutes."""
LOST = ("node.kubernetes.io/not-ready", "node.kubernetes.io/unreachable")
HOST = "kubernetes.io/hostname"


def node_selector(plan: Plan) -> dict[str, str]:
    if plan.role == names.FORWARD:
        return plan.spec.plugins.fbd.forward_node_selector
    return plan.spec.scheduling.node_selector


def tolerations(plan: Plan) -> list[dict[str, Any]]:
    given = plan.spec.scheduling.tolerations
    own = [
        {"key": key, "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": NODE_LOST_SECONDS}
        for key in LOST
        if key not in {toleration.get("key") for toleration in given}
    ]
    return [*given, *own]


def affinity(plan: Plan) -> dict[str, Any]:
    """Away from excluded nodes; pods of the job on nodes of their own if there are enough, in one topology domain for
    each role."""
    labels = {names.JOB_LABEL: plan.job.metadata.name}
    own = {"labelSelector": {"matchLabels": labels}}
    spread = {"weight": 100, "podAffinityTerm": {**own, "topologyKey": HOST}}
    found: dict[str, Any] = {"podAntiAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": [spread]}}
    if plan.excluded:
        # One requirement a node: the field selector takes a single value.
        fields = [{"key": "metadata.name", "operator": "NotIn", "values": [node]} for node in plan.excluded]
        terms = {"nodeSelectorTerms": [{"matchFields": fields}]}
        found["nodeAffinity"] = {"requiredDuringSchedulingIgnoredDuringExecution": terms}
    topology = plan.spec.scheduling.topology
    if topology is not None and not plan.spec.scheduling.queue:
        role = {names.ROLE_LABEL: plan.role} if plan.role else {}
        term = {"labelSelector": {"matchLabels": {**labels, **role}}, "topologyKey": topology.level}
        required = topology.mode == "Required"
        found["podAffinity"] = (
            {"requiredDuringSchedulingIgnoredDuringExecution": [term]}
            if required
            else {"preferredDuringSchedulingIgnoredDuringExecution": [{"weight": 50, "podAffinityTerm": term}]}
        )
    return found


def topology_annotations(plan: Plan) -> dict[str, str]:
    """With Kueue the topology is its matter."""
    topology = plan.spec.scheduling.topology
    if topology is None or not plan.spec.scheduling.queue:
        return {}
    return {f"kueue.x-k8s.io/podset-{topology.mode.lower()}-topology": topology.level}
