"""The NetworkPolicy that lets a job's ranks reach each other, and nobody else reach them."""

from __future__ import annotations

from typing import Any

from megatronapp.core.trainingjob import TrainingJob
from megatronapp.operator import names
from megatronapp.operator.render.plan import owner


def render_network_policy(job: TrainingJob) -> dict[str, Any]:
    """Ranks trust each other without any token, so only they get in. Where they may go to is the user's matter:
    policies add up, and another one may let more in."""
    labels = {names.JOB_LABEL: job.metadata.name, names.MANAGED_BY_LABEL: names.MANAGED_BY}
    ranks = {"matchLabels": {names.JOB_LABEL: job.metadata.name}}
    return {
        "apiVersion": "networking.k8s.io/v1",
        "kind": "NetworkPolicy",
        "metadata": {
            "name": names.service(job.metadata.name),
            "namespace": job.metadata.namespace,
            "labels": labels,
            "ownerReferences": [owner(job)],
        },
        "spec": {
            "podSelector": ranks,
            "policyTypes": ["Ingress"],
            "ingress": [{"from": [{"podSelector": ranks}]}],
        },
    }
