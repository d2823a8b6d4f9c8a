"""The Indexed Job of one attempt: it runs once, as a whole, or has failed. Attempts are the operator's matter."""

from __future__ import annotations

import json
from hashlib import sha256
from typing import Any

from megatronapp.operator import names
from megatronapp.operator.render.plan import Plan
from megatronapp.operator.render.pod import CONTAINER, pod_template

QUEUE_LABEL = "kueue.x-k8s.io/queue-name"


def render_job(plan: Plan) -> dict[str, Any]:
    """Of one part of an attempt."""
    spec = job_spec(plan)
    metadata = plan.metadata(plan.job_name)
    metadata["annotations"] = annotations_of(plan)
    if plan.spec.scheduling.queue and plan.spec.scheduling.gang != "Volcano":
        metadata["labels"] = {**plan.labels(), QUEUE_LABEL: plan.spec.scheduling.queue}
    # With a queue `suspend` is Kueue's, unless the user wants it: two owners would flip it for ever.
    if plan.spec.suspend:
        spec["suspend"] = True
    return {"apiVersion": "batch/v1", "kind": "Job", "metadata": metadata, "spec": spec}


def job_spec(plan: Plan) -> dict[str, Any]:
    """A pod that fails fails the Job, and no pod is replaced: a gang starts again as a whole."""
    found = {
        "completionMode": "Indexed",
        "completions": plan.pods,
        "parallelism": plan.pods,
        "backoffLimit": 0,
        "podReplacementPolicy": "Failed",
        "template": pod_template(plan),
    }
    codes = plan.spec.failure_policy.non_retriable_exit_codes
    if codes:
        on_exit = {"containerName": CONTAINER, "operator": "In", "values": sorted(set(codes))}
        found["podFailurePolicy"] = {"rules": [{"action": "FailJob", "onExitCodes": on_exit}]}
    return found


def annotations_of(plan: Plan) -> dict[str, str]:
    return {names.DIGEST: digest(plan), **({names.HELD: "true"} if plan.spec.suspend else {})}


def digest(plan: Plan) -> str:
    """Of all parts of the attempt: one that is out of date makes the others so."""
    texts = (json.dumps(job_spec(part), sort_keys=True) for part in plan.parts)
    return sha256("".join(texts).encode()).hexdigest()[:16]
