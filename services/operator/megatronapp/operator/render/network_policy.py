"""The NetworkPolicy that lets a job's ranks reach each other, and nobody else reach them."""

from __future__ import annotations

from typing import Any

from megatronapp.core.trainingjob import TrainingJob
from megatronapp.operator import names
from megatronapp.operator.render.plan import shared_metadata


def render_network_policy(job: TrainingJob) -> dict[str, Any]:
    """Ranks trust each other without any token, so only they get in. Where they may go to is the user's matter:
    policies add up, and another one may let more in."""
    ranks = {"matchLabels": {names.JOB_LABEL: job.metadata.name}}
    return {
        "apiVersion": "networking.k8s.io/v1",
        "kind": "NetworkPolicy",
        "metadata": shared_metadata(job),
        "spec": {
            "podSelector": ranks,
            "policyTypes": ["Ingress"],
            "ingress": [{"from": [{"podSelector": ranks}]}],
        },
    }
