"""What the operator can be told."""

from __future__ import annotations

import socket
from importlib.metadata import version
from pathlib import Path
from typing import Literal

from pydantic import Field, SecretStr
from pydantic_settings import SettingsConfigDict

from megatronapp.core.settings import Names, ServiceSettings
from megatronapp.operator.pod_policy import POD_TEMPLATE_FIELDS
from megatronapp.operator.pod_security import Level

NAMESPACE_FILE = Path("/var/run/secrets/kubernetes.io/serviceaccount/namespace")


def own_namespace() -> str:
    """The pod's namespace; outside a cluster "default"."""
    return NAMESPACE_FILE.read_text().strip() if NAMESPACE_FILE.exists() else "default"


class OperatorSettings(ServiceSettings):
    model_config = SettingsConfigDict(env_prefix="MEGATRONAPP_OPERATOR_", extra="forbid", frozen=True)

    namespace: str = Field(
        default_factory=own_namespace, description="where the operator's Lease lives; default: the pod's namespace"
    )
    lease_name: str = Field(default="megatronapp-operator", description="one operator at a time holds it")
    lease_seconds: int = Field(default=15, ge=3, le=300, description="a lost leader is replaced after so long")
    identity: str = Field(
        default_factory=socket.gethostname, description="who holds the Lease; default: the host's name"
    )
    watch_namespaces: Names = Field(default=(), description="whose TrainingJobs it runs; empty: all")
    workers: int = Field(default=8, ge=1, le=64, description="jobs worked on at once")

    trainer_image: str = Field(
        default_factory=lambda: f"docker.io/megatronapp/trainer:{version('megatronapp')}",
        description="for jobs that name no image; default: the trainer of the operator's version",
    )
    collector_address: str = Field(
        default="", description="host:port that pods send traces to; {shard} is replaced by the job's shard"
    )
    collector_shards: int = Field(default=1, ge=1, le=1024, description="collectors that jobs are spread over")
    collector_tls_secret: str = Field(
        default="",
        description="Secret of each job's namespace whose ca.crt its pods trust for the collector; empty: clear text",
    )
    collector_mutual_tls: bool = Field(
        default=False, description="pods show the collector tls.crt, whose key is tls.key, of that Secret"
    )
    gateway_address: str = Field(default="", description="host:port of the gateway for MegaScope's pods")
    gateway_url: str = Field(default="", description="the gateway's REST, for progress and findings; empty: neither")
    gateway_token: SecretStr | None = Field(default=None, description="a viewer's token for the gateway")
    phase_token: SecretStr | None = Field(
        default=None,
        description="token with which the gateway is told where TrainingJobs stand; absent: it is not told",
    )
    phases_seconds: float = Field(
        default=60.0, gt=0, le=3600, description="how often it is told of all, not only of what is new"
    )
    network_policy: bool = Field(default=True, description="a job's ranks are reached by each other alone")
    resync_seconds: float = Field(
        default=180.0, ge=1, le=3600, description="how often every job is reconciled without an event"
    )
    poll_seconds: float = Field(default=5.0, gt=0, le=300, description="how often the gateway is asked")
    progress_seconds: float = Field(default=15.0, gt=0, description="how often progress alone is written to a status")

    remediation_limit: Literal["Observe", "ExcludeNode", "Taint"] = Field(
        default="Taint", description="the most that a job's remediation.mode may do"
    )
    exclusion_seconds: int = Field(
        default=86_400,
        ge=1,
        description="how long a slow node is left alone; doubled if it is found slow again within as long a time",
    )
    breaker_nodes: int = Field(default=1, ge=0, description="most nodes acted on in the window")
    breaker_ratio: float = Field(default=0.05, ge=0, le=1, description="the same, of the cluster; the larger counts")
    breaker_window_seconds: int = Field(default=3600, ge=1, description="the circuit breaker's window")

    coscheduling: bool = Field(default=False, description="PodGroups of scheduler-plugins may be asked for")
    volcano: bool = Field(default=False, description="PodGroups of Volcano may be asked for")
    jobset: bool = Field(default=False, description="JobSets may be asked for")

    pod_security: Level = Field(default="restricted", description="Pod Security Standard of jobs' pods")
    pod_template_fields: Names = Field(
        default=POD_TEMPLATE_FIELDS, description="fields of a pod's spec that podTemplate may set; `*`: all"
    )
    service_accounts: Names = Field(
        default=(), description="those that jobs may name; `a*`: all that begin with a; `*`: all"
    )
    secret_names: Names = Field(default=(), description="Secrets whose content pods may have; likewise")
