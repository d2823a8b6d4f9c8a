"""The headless Service that gives each rank's pod a name."""

from __future__ import annotations

from typing import Any

from megatronapp.core.trainingjob import TrainingJob
from megatronapp.operator import names
from megatronapp.operator.render.plan import shared_metadata


def render_service(job: TrainingJob) -> dict[str, Any]:
    """Names of pods that are not ready are published too: ranks look for each other while they start."""
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": shared_metadata(job),
        "spec": {
            "clusterIP": "None",
            "publishNotReadyAddresses": True,
            "selector": {names.JOB_LABEL: job.metadata.name},
        },
    }
