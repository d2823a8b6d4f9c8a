"""What an attempt is rendered from."""

from __future__ import annotations

import zlib
from dataclasses import dataclass, replace
from typing import Any

from megatronapp.core.trainingjob import Spec, TrainingJob
from megatronapp.core.trainingjob.disaggregation import forward_nodes
from megatronapp.operator import names
from megatronapp.operator.crd.definition import GROUP, KIND, VERSION


@dataclass(frozen=True)
class RenderSettings:
    """What every job of an installation shares: addresses for its pods, and the trainer's image."""

    trainer_image: str
    collector_address: str = ""
    collector_shards: int = 1
    gateway_address: str = ""
    network_policy: bool = True
    """Whether each job gets a policy that keeps others from its ranks."""
    collector_tls_secret: str = ""
    """Of each job's namespace; "": the collector speaks clear text."""
    collector_mutual_tls: bool = False
    """Whether pods show a certificate."""

    def collector_of(self, run: str) -> str:
        """The collector of this run: its ranks meet in one place."""
        shard = zlib.crc32(run.encode()) % self.collector_shards
        return self.collector_address.replace("{shard}", str(shard))


@dataclass(frozen=True)
class Plan:
    """One attempt of a job: on how many nodes, and on which not."""

    job: TrainingJob
    attempt: int
    nodes: int
    excluded: tuple[str, ...]
    platform: RenderSettings
    role: str = ""
    """Of the ranks of one Job, where there is one for each role."""

    @property
    def parts(self) -> tuple[Plan, ...]:
        """One for each Job: the first has the job's first nodes."""
        if not self.spec.plugins.fbd.apart:
            return (self,)
        return replace(self, role=names.BACKWARD), replace(self, role=names.FORWARD)

    @property
    def pods(self) -> int:
        """Of the part's Job."""
        forward = forward_nodes(self.spec)
        return {names.FORWARD: forward, names.BACKWARD: self.nodes - forward}.get(self.role, self.nodes)

    @property
    def first_node(self) -> int:
        return self.nodes - self.pods if self.role == names.FORWARD else 0

    @property
    def spec(self) -> Spec:
        return self.job.spec

    @property
    def name(self) -> str:
        """Of the attempt, and of its first Job."""
        return names.child(self.job.metadata.name, self.attempt)

    @property
    def job_name(self) -> str:
        return names.child(self.job.metadata.name, self.attempt, self.role)

    @property
    def service(self) -> str:
        return names.service(self.job.metadata.name)

    @property
    def full_name(self) -> str:
        return f"{self.job.metadata.namespace}/{self.job.metadata.name}"

    @property
    def image(self) -> str:
        return self.spec.image or self.platform.trainer_image

    def labels(self) -> dict[str, str]:
        return {
            names.JOB_LABEL: self.job.metadata.name,
            names.RUN_LABEL: self.job.metadata.uid,
            names.ATTEMPT_LABEL: str(self.attempt),
            names.MANAGED_BY_LABEL: names.MANAGED_BY,
            **({names.ROLE_LABEL: self.role} if self.role else {}),
        }

    def metadata(self, name: str) -> dict[str, object]:
        """Of an object that belongs to the job and goes with it."""
        return {
            "name": name,
            "namespace": self.job.metadata.namespace,
            "labels": self.labels(),
            "ownerReferences": [owner(self.job)],
        }


def owner(job: TrainingJob) -> dict[str, object]:
    return {
        "apiVersion": f"{GROUP}/{VERSION}",
        "kind": KIND,
        "name": job.metadata.name,
        "uid": job.metadata.uid,
        "controller": True,
    }


def shared_metadata(job: TrainingJob) -> dict[str, Any]:
    """Of what all attempts of a job share."""
    return {
        "name": names.service(job.metadata.name),
        "namespace": job.metadata.namespace,
        "labels": {names.JOB_LABEL: job.metadata.name, names.MANAGED_BY_LABEL: names.MANAGED_BY},
        "ownerReferences": [owner(job)],
    }
