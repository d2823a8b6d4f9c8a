"""The headless Service that gives each rank's pod a name."""

from __future__ import annotations

from typing import Any

from megatronapp.core.trainingjob import TrainingJob
from megatronapp.operator import names
from megatronapp.operator.render.plan import owner


def render_service(job: TrainingJob) -> dict[str, Any]:
    """Names of pods that are not ready are published too: ranks look for each other while they start."""
    labels = {names.JOB_LABEL: job.metadata.name, names.MANAGED_BY_LABEL: names.MANAGED_BY}
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {
            "name": names.service(job.metadata.name),
            "namespace": job.metadata.namespace,
            "labels": labels,
            "ownerReferences": [owner(job)],
        },
        "spec": {
            "clusterIP": "None",
            "publishNotReadyAddresses": True,
            "selector": {names.JOB_LABEL: job.metadata.name},
        },
    }
