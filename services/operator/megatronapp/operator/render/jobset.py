"""The same attempt as a JobSet, for clusters whose tools look at JobSets."""

from __future__ import annotations

from typing import Any

from megatronapp.operator.render.job import QUEUE_LABEL, annotations_of, job_spec
from megatronapp.operator.render.plan import Plan

REPLICATED_JOB = "ranks"


def render_jobset(plan: Plan) -> dict[str, Any]:
    """One replicated Job; restarts stay the operator's, so that attempts are counted once."""
    spec = job_spec(plan)
    metadata = plan.metadata(plan.name)
    # On the inner Job too: that is what is watched.
    annotations = metadata["annotations"] = annotations_of(plan)
    if plan.spec.scheduling.queue:
        metadata["labels"] = {**plan.labels(), QUEUE_LABEL: plan.spec.scheduling.queue}
    found: dict[str, Any] = {
        "network": {"enableDNSHostnames": False},
        "failurePolicy": {"maxRestarts": 0},
        "replicatedJobs": [
            {
                "name": REPLICATED_JOB,
                "replicas": 1,
                "template": {"metadata": {"labels": plan.labels(), "annotations": annotations}, "spec": spec},
            }
        ],
    }
    if plan.spec.suspend:
        found["suspend"] = True
    return {"apiVersion": "jobset.x-k8s.io/v1alpha2", "kind": "JobSet", "metadata": metadata, "spec": found}
