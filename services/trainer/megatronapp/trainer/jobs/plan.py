"""What a TrainingJob becomes on one machine: command, environment and folders. No process is started here."""

from __future__ import annotations

import socket
import sys
import uuid
from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path

import yaml

from megatronapp.core.errors import PluginMissingError, UsageError
from megatronapp.core.trainingjob import TrainingJob
from megatronapp.core.trainingjob.reserved import is_reserved_env
from megatronapp.core.trainingjob.spec import Spec
from megatronapp.trainer.environment import GATEWAY_ADDRESS
from megatronapp.trainer.plugins.base import installed

NCCL_WHEEL = "megatronapp.nccl"
IGNORED = (
    "image",
    "image_pull_policy",
    "image_pull_secrets",
    "command",
    "attach",
    "backend",
    "resources",
    "shared_memory",
    "rdma",
    "scheduling",
    "elastic",
    "remediation",
    "env_from",
    "service_account_name",
    "labels",
    "annotations",
    "active_deadline_seconds",
    "ttl_seconds_after_finished",
    "suspend",
    "managed_by",
    "pod_template",
)
"""Keys of a spec that mean something on a cluster alone."""


@dataclass(frozen=True)
class LocalPlan:
    """One job on one machine. `folder` keeps its checkpoints, logs and scenario."""

    job: TrainingJob
    run: str
    folder: Path
    storage: Mapping[str, Path]
    collector_address: str = ""
    token_file: Path | None = None
    certificates: Mapping[str, str] = field(default_factory=dict)
    """For TLS to the collector: the ranks' variables that name the files."""
    gateway_address: str = ""
    """host:port where models are shown; empty: nowhere."""

    @classmethod
    def make(
        cls,
        job: TrainingJob,
        folder: Path,
        *,
        storage: Mapping[str, Path],
        collector_address: str = "",
        token_file: Path | None = None,
        certificates: Mapping[str, str] | None = None,
        gateway_address: str = "",
    ) -> LocalPlan:
        """Raises UsageError when the job needs what a single machine has not, PluginMissingError for a plug-in."""
        _check_storage(job.spec, storage)
        plugins = job.spec.plugins
        _check_plugins(plugins.enabled)
        if plugins.faults.scenario_from is not None:
            raise UsageError("plugins.faults.scenarioFrom names a ConfigMap: give the scenario inline on a laptop")
        run = job.metadata.uid or uuid.uuid4().hex
        return cls(
            job=job,
            run=run,
            folder=folder.resolve(),
            storage=storage,
            collector_address=collector_address,
            token_file=token_file,
            certificates=certificates or {},
            gateway_address=gateway_address,
        )

    @property
    def name(self) -> str:
        return f"local/{self.job.metadata.name}"

    @property
    def checkpoints(self) -> Path:
        return self.folder / "checkpoints"

    @property
    def scenario_file(self) -> Path | None:
        scenario = self.job.spec.plugins.faults.scenario
        return self.folder / "scenario.yaml" if scenario and scenario.faults else None

    def log_file(self, attempt: int) -> Path:
        return self.folder / "logs" / f"attempt-{attempt}.log"

    def notes(self) -> list[str]:
        """What the user must know before it starts."""
        spec = self.job.spec
        unused = [key for key in IGNORED if key in spec.model_fields_set]
        ignored = [f"spec.{type(spec).model_fields[key].alias or key}" for key in unused]
        ignored += [f"spec.env {variable.name} (valueFrom)" for variable in spec.env if variable.value_from is not None]
        ignored += ["spec.plugins.fbd.forwardNodeSelector"] if spec.plugins.fbd.apart else []
        notes = [f"Ignoring {', '.join(ignored)} in local runs"] if ignored else []
        if spec.nodes > 1:
            notes.append(f"all {spec.world_size} ranks of the {spec.nodes} nodes run on this machine")
        return notes

    def write(self) -> None:
        """Make the folders and the scenario's file. Raises OSError."""
        self.checkpoints.mkdir(parents=True, exist_ok=True)
        self.log_file(1).parent.mkdir(exist_ok=True)
        scenario = self.job.spec.plugins.faults.scenario
        if self.scenario_file and scenario:
            content = scenario.model_dump(mode="json", exclude_defaults=True)
            self.scenario_file.write_text(yaml.safe_dump(content, sort_keys=False))

    def command(self) -> list[str]:
        """torchrun's agent over all ranks; --standalone listens on loopback and a free port."""
        agent = [sys.executable, "-u", "-m", "megatronapp.trainer.jobs.torchrun"]
        ranks = ["--standalone", "--nnodes=1", f"--nproc-per-node={self.job.spec.world_size}", "--max-restarts=0"]
        scenario = str(self.scenario_file) if self.scenario_file else ""
        flags = [self._local(argument) for argument in self.job.spec.trainer_args(scenario)]
        return [*agent, *ranks, "-m", "megatronapp.trainer", *flags]

    def environment(self, inherited: Mapping[str, str], attempt: int) -> dict[str, str]:
        """The ranks' environment; what an outer torchrun or platform left in `inherited` is taken out."""
        environment = {name: value for name, value in inherited.items() if not is_reserved_env(name)}
        # One thread a rank: the ranks share the machine's cores, and oversubscribed cores make every timing noise.
        environment |= {"OMP_NUM_THREADS": "1", "PYTHONUNBUFFERED": "1"}
        environment |= {v.name: self._local(v.value) for v in self.job.spec.env if v.value_from is None}
        environment |= {
            "MEGATRONAPP_RUN_ID": self.run,
            "MEGATRONAPP_JOB": self.name,
            "MEGATRONAPP_ATTEMPT": str(attempt),
            "MEGATRONAPP_NODE_NAME": socket.gethostname(),
            "MEGATRONAPP_CHECKPOINT_DIR": str(self.checkpoints),
        }
        if self.collector_address:
            environment["MEGATRONAPP_COLLECTOR_ADDRESS"] = self.collector_address
            environment |= self.certificates
        if self.gateway_address:
            environment[GATEWAY_ADDRESS] = self.gateway_address
        if self.token_file is not None:
            environment["MEGATRONAPP_TOKEN_FILE"] = str(self.token_file)
        return environment

    def _local(self, text: str) -> str:
        """`text` with the mount path of a storage at its beginning, or after a flag's "=", made the local folder."""
        flag, equals, value = text.partition("=") if text.startswith("--") else ("", "", text)
        for volume in self.job.spec.storage:
            mount = volume.mount_path.rstrip("/")
            if value == mount or value.startswith(mount + "/"):
                return f"{flag}{equals}{self.storage[volume.name].resolve()}{value[len(mount) :]}"
        return text


def _check_plugins(enabled: list[str]) -> None:
    found = installed()
    for name in enabled:
        if name not in found:
            turn_off = "leave its scenario out" if name == "faults" else f"set plugins.{name}.enabled to false"
            raise PluginMissingError(
                f"plugins.{name}: this machine has no plug-in {name} ({', '.join(found) or 'none'} installed): "
                f"install the package that brings it, or {turn_off}"
            )
    if "megatrace" in enabled and find_spec(NCCL_WHEEL) is None:
        raise PluginMissingError(
            "plugins.megatrace: the plug-in for NCCL is not installed: pip install megatronapp-nccl, or set "
            "plugins.megatrace.enabled to false"
        )


def _check_storage(spec: Spec, storage: Mapping[str, Path]) -> None:
    names = [volume.name for volume in spec.storage]
    for name in names:
        if name not in storage:
            raise UsageError(f"the job mounts storage {name}: give its folder with --storage {name}=DIR")
    for name, folder in storage.items():
        if name not in names:
            raise UsageError(f"--storage {name}: the job has no storage of that name ({', '.join(names) or 'none'})")
        if not folder.is_dir():
            raise UsageError(f"--storage {name}={folder}: there is no such folder")
