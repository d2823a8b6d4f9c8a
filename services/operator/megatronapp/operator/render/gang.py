"""All pods or none: what the schedulers that know gangs want to see."""

from __future__ import annotations

from typing import Any

from megatronapp.operator.render.plan import Plan

COSCHEDULING = "Coscheduling"
VOLCANO = "Volcano"


def pod_group(plan: Plan) -> dict[str, Any] | None:
    """The PodGroup that the chosen scheduler needs; None for Auto, None and Native, where there is nothing to make."""
    gang, spec = plan.spec.scheduling.gang, dict[str, Any](minMember=plan.nodes)
    if gang == COSCHEDULING:
        api = "scheduling.x-k8s.io/v1alpha1"
    elif gang == VOLCANO:
        api = "scheduling.volcano.sh/v1beta1"
        if plan.spec.scheduling.queue:
            spec["queue"] = plan.spec.scheduling.queue
    else:
        return None
    return {"apiVersion": api, "kind": "PodGroup", "metadata": plan.metadata(plan.name), "spec": spec}


def pod_labels(plan: Plan) -> dict[str, str]:
    return {"scheduling.x-k8s.io/pod-group": plan.name} if plan.spec.scheduling.gang == COSCHEDULING else {}


def pod_annotations(plan: Plan) -> dict[str, str]:
    return {"scheduling.k8s.io/group-name": plan.name} if plan.spec.scheduling.gang == VOLCANO else {}


def scheduler(plan: Plan) -> str:
    return "volcano" if plan.spec.scheduling.gang == VOLCANO else ""
