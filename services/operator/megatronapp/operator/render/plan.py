"""What an attempt is rendered from."""

from __future__ import annotations

import zlib
from dataclasses import dataclass
from typing import Any

from megatronapp.core.trainingjob import Spec, TrainingJob
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

    @property
    def spec(self) -> Spec:
        return self.job.spec

    @property
    def name(self) -> str:
        return names.child(self.job.metadata.name, self.attempt)

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
