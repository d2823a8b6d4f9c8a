"""All metric names of the platform, in one list; a test compares it with what the services expose.

Labels `training_job` and `namespace` name the job: `job` belongs to Prometheus.
"""

from __future__ import annotations

JOB_LABELS = ("training_job", "namespace")


def job_labels(job: str) -> dict[str, str]:
    """`<namespace>/<name>` as labels."""
    namespace, _, name = job.partition("/")
    return {"training_job": name, "namespace": namespace}
