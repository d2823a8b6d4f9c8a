"""TrainingJobs and what is there for them, with what a test does not care about filled in."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

from megatronapp.core.trainingjob import Status, TrainingJob
from megatronapp.operator.observation import Breaker, Limits, Observation
from megatronapp.operator.render import RenderSettings
from megatronapp.operator.snapshots import ChildJob, FindingSummary, Node, Pod, Report

NOW = datetime(2026, 1, 1, 12, tzinfo=UTC)
UID = "0f9d8c7b-0000-4000-8000-000000000001"
PLATFORM = RenderSettings("docker.io/megatronapp/trainer:0.1.0", "collector-{shard}.traces:7601", 3, "gateway:7602")


def training_job(status: Status | None = None, generation: int = 1, **spec: Any) -> TrainingJob:
    return TrainingJob.model_validate(
        {
            "apiVersion": "megatronapp.io/v1alpha1",
            "kind": "TrainingJob",
            "metadata": {
                "name": "gpt",
                "namespace": "team",
                "uid": UID,
                "generation": generation,
                "resourceVersion": "7",
            },
            "spec": {"procPerNode": 2, "nodes": 2, **spec},
            "status": status,
        }
    )


def child(attempt: int = 1, **values: Any) -> ChildJob:
    defaults: dict[str, Any] = {"nodes": 2, "version": attempt, "digest": "", "run": UID}
    return ChildJob(name=f"gpt-{attempt}", namespace="team", attempt=attempt, **{**defaults, **values})


def pod(index: int = 0, attempt: int = 1, **values: Any) -> Pod:
    defaults: dict[str, Any] = {"node": f"node{index + 1}", "phase": "Running", "ready": True}
    return Pod(name=f"gpt-{attempt}-{index}-x", run=UID, attempt=attempt, **{**defaults, **values})


def suspicion(**values: Any) -> FindingSummary:
    defaults: dict[str, Any] = {
        "kind": "slow_gpu",
        "cause": "compute",
        "ranks": (2, 3),
        "node": "node2",
        "effect_ratio": 1.5,
        "confidence": 0.99,
        "page": True,
        "steps_open": 5,
        "summary": "ranks 2, 3 are slow",
    }
    return FindingSummary(**{**defaults, **values})


def report(*suspicions: FindingSummary, **values: Any) -> Report:
    defaults: dict[str, Any] = {"attempt": 1, "step": 40, "total_steps": 200, "step_seconds": 0.25, "eta_seconds": 40.0}
    return Report(suspicions=suspicions, **{**defaults, **values})


def observation(job: TrainingJob | None = None, **values: Any) -> Observation:
    nodes = {name: Node(name) for name in ("node1", "node2", "node3")}
    defaults: dict[str, Any] = {
        "children": (),
        "pods": (),
        "service": True,
        "nodes": nodes,
        "report": None,
        "refusal": None,
        "now": NOW,
        "platform": PLATFORM,
        "limits": Limits(),
        "breaker": Breaker(),
    }
    return Observation(job=job or training_job(), **{**defaults, **values})


def running(job: TrainingJob | None = None, **values: Any) -> Observation:
    """Attempt 1 on node1 and node2."""
    return observation(job, **{"children": (child(),), "pods": (pod(0), pod(1)), **values})
