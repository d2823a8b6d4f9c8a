"""What a TrainingJob asks for. Rules on one object stand here; what is immutable is the operator's matter."""

from __future__ import annotations

import math
from itertools import zip_longest
from typing import Annotated, Any, Literal, Self

from pydantic import Field, ValidationInfo, field_validator, model_validator
from pydantic.alias_generators import to_camel

from megatronapp.core.trainingjob import disaggregation, pod_template
from megatronapp.core.trainingjob.base import Model, ObjectName
from megatronapp.core.trainingjob.plugins import ZERO_BUBBLE_POLICIES, Plugins
from megatronapp.core.trainingjob.reserved import TOKEN_FOLDER, hides_token, is_reserved_env
from megatronapp.core.trainingjob.sizing import Elastic, Parallelism, Rdma, Resources, Scheduling, SharedMemory

MANAGER = "megatronapp.io/operator"
CHECKPOINTS = "checkpoints"
"""The storage of this name takes the checkpoints."""

MAX_STEPS = 1_000_000
DAY_SECONDS = 86_400
YEARS_SECONDS = 10 * 365 * DAY_SECONDS
"""Ten of them: longer than any job, and dates that far ahead can still be reckoned with."""

ExitCode = Annotated[int, Field(ge=1, le=255)]
DnsLabel = Annotated[str, Field(pattern=r"^[a-z]([-a-z0-9]*[a-z0-9])?$", max_length=63)]
AbsolutePath = Annotated[str, Field(pattern=r"^/[^:]*$", max_length=1024)]


class FailurePolicy(Model):
    max_restarts: int = Field(default=3, ge=0, le=998, description="attempts after the first, from the last checkpoint")
    non_retriable_exit_codes: list[ExitCode] = Field(default_factory=lambda: [2], max_length=32)
    stuck_termination_seconds: int = Field(
        default=60, ge=0, le=DAY_SECONDS, description="on a lost node; then the attempt has ended"
    )
    backoff_seconds: int = Field(
        default=10, ge=0, le=DAY_SECONDS, description="before a restart; doubled by each failure in a row"
    )
    max_backoff_seconds: int = Field(default=300, ge=0, le=DAY_SECONDS)
    startup_timeout_seconds: int = Field(
        default=1800, ge=0, le=30 * DAY_SECONDS, description="a job whose pods can't start has failed then; 0: never"
    )


class Remediation(Model):
    mode: Literal["Observe", "ExcludeNode", "Taint"] = "Observe"
    min_confidence: float = Field(default=0.9, ge=0, le=1, description="of a finding that moves the job")
    confirmations: int = Field(default=3, ge=1, le=MAX_STEPS)
    cooldown_seconds: int = Field(default=900, ge=0, le=30 * DAY_SECONDS)


class Storage(Model):
    """A volume claim mounted into every pod; on a laptop a folder that `--storage name=dir` gives.

    The one called `checkpoints` takes the checkpoints, in a folder `<namespace>/<name>` of the job's own.
    """

    name: DnsLabel
    claim_name: ObjectName
    mount_path: AbsolutePath
    read_only: bool = False


class EnvVar(Model):
    """As in a pod; `valueFrom` is handed to Kubernetes as it is."""

    name: str = Field(pattern=r"^[A-Za-z_][A-Za-z0-9_.-]*$", max_length=256)
    value: str = ""
    value_from: dict[str, Any] | None = None

    @model_validator(mode="after")
    def _not_reserved(self) -> Self:
        if is_reserved_env(self.name):
            raise ValueError(f"{self.name} is set by the platform; take another name")
        return self


class LocalReference(Model):
    name: ObjectName


class Spec(Model):
    mode: Literal["train", "serve"] = Field(
        default="train", description="serve: answer requests with the checkpoint that args --load names"
    )
    image: str = Field(default="", max_length=1024, description="default: the trainer of the operator's own version")
    image_pull_policy: Literal["Always", "IfNotPresent", "Never"] | None = None
    image_pull_secrets: list[LocalReference] = Field(default_factory=list, max_length=16)
    command: list[str] = Field(
        default_factory=list, max_length=64, description="default: torchrun -m megatronapp.trainer"
    )
    args: list[str] = Field(default_factory=list, max_length=1024, description="the trainer's flags")
    attach: bool = Field(
        default=False,
        description="put MegaScan, and plugins.scope, on `command` in `image`, neither of which is changed",
    )
    nodes: int = Field(default=1, ge=1, le=10_000)
    proc_per_node: int = Field(ge=1, le=256)
    parallelism: Parallelism = Parallelism()
    backend: Literal["Job", "JobSet"] = Field(default="Job", description="what runs the pods of an attempt")
    resources: Resources = Resources()
    plugins: Plugins = Plugins()
    shared_memory: SharedMemory = SharedMemory()
    rdma: Rdma | None = None
    scheduling: Scheduling = Scheduling()
    elastic: Elastic | None = None
    failure_policy: FailurePolicy = FailurePolicy()
    remediation: Remediation = Remediation()
    storage: list[Storage] = Field(default_factory=list, max_length=32)
    env: list[EnvVar] = Field(default_factory=list, max_length=256)
    env_from: list[dict[str, Any]] = Field(default_factory=list, max_length=32)
    service_account_name: str = ""
    labels: dict[str, str] = Field(default_factory=dict, max_length=64)
    annotations: dict[str, str] = Field(default_factory=dict, max_length=64)
    termination_grace_period_seconds: int = Field(default=120, ge=1, le=DAY_SECONDS)
    active_deadline_seconds: int | None = Field(default=None, ge=1, le=YEARS_SECONDS)
    ttl_seconds_after_finished: int | None = Field(default=None, ge=0, le=YEARS_SECONDS)
    suspend: bool = False
    managed_by: str = Field(default=MANAGER, max_length=253, description="another name: the operator leaves the job be")
    pod_template: dict[str, Any] = Field(default_factory=dict, description="strategic overlay, the last resort")

    @property
    def world_size(self) -> int:
        return self.nodes * self.proc_per_node

    @property
    def checkpoint_mount(self) -> str:
        """Where the storage for checkpoints is mounted; "" without one."""
        return next((volume.mount_path for volume in self.storage if volume.name == CHECKPOINTS), "")

    @model_validator(mode="before")
    @classmethod
    def _small(cls, given: object) -> object:
        """Before anything looks into it."""
        pod_template.check_size(given)
        return given

    @field_validator("labels", "annotations")
    @classmethod
    def _keys_are_free(cls, given: dict[str, str], info: ValidationInfo) -> dict[str, str]:
        pod_template.check_keys(given, info.field_name or "")
        return given

    @field_validator("pod_template")
    @classmethod
    def _template_is_the_users(cls, given: dict[str, Any]) -> dict[str, Any]:
        pod_template.check(given)
        return given

    @model_validator(mode="after")
    def _world_divides(self) -> Self:
        sizes = self.parallelism
        if self.plugins.fbd.enabled:
            disaggregation.check(self)
            return self
        if self.world_size % sizes.model_ranks:
            raise ValueError(
                f"nodes x procPerNode = {self.world_size} is no multiple of tensor x pipeline x context = "
                f"{sizes.tensor} x {sizes.pipeline} x {sizes.context} = {sizes.model_ranks}"
            )
        grid = sizes.tensor * sizes.pipeline * sizes.expert
        if self.world_size % grid:
            raise ValueError(
                f"nodes x procPerNode = {self.world_size} is no multiple of tensor x pipeline x expert = {grid}"
            )
        return self

    @property
    def _step_of_sizes(self) -> int:
        """Ranks of a replica, or of as many as experts are spread over."""
        sizes = self.parallelism
        replica = sum(disaggregation.replica_ranks(self)) if self.plugins.fbd.enabled else sizes.model_ranks
        return replica * sizes.expert // math.gcd(sizes.expert, sizes.context)

    @model_validator(mode="after")
    def _elastic_sizes_divide(self) -> Self:
        if self.elastic is None:
            return self
        low, high, ranks = self.elastic.min_nodes, self.elastic.max_nodes, self._step_of_sizes
        if not low <= self.nodes <= high:
            raise ValueError(f"elastic: nodes {self.nodes} must lie between minNodes {low} and maxNodes {high}")
        if low * self.proc_per_node % ranks or (low != high and self.proc_per_node % ranks):
            raise ValueError(f"elastic: every size from minNodes to maxNodes must be a multiple of {ranks} ranks")
        return self

    @model_validator(mode="after")
    def _lanes_and_mounts(self) -> Self:
        if self.plugins.dpp.enabled and self.plugins.dpp.transport == "ucx" and self.rdma is None:
            raise ValueError("plugins.dpp.transport ucx needs rdma")
        for what, values in (
            ("name", [volume.name for volume in self.storage]),
            ("mountPath", [volume.mount_path for volume in self.storage]),
        ):
            twice = next((value for value in values if values.count(value) > 1), None)
            if twice:
                raise ValueError(f"storage: {what} {twice} is given twice")
        hiding = next((volume.mount_path for volume in self.storage if hides_token(volume.mount_path)), None)
        if hiding:
            raise ValueError(f"storage: mountPath {hiding} would hide the platform's token in {TOKEN_FOLDER}")
        return self

    @model_validator(mode="after")
    def _args_agree_with_parallelism(self) -> Self:
        flags = flag_values(self.args)
        for flag, key in PARALLELISM_FLAGS.items():
            wanted = str(getattr(self.parallelism, key))
            if flag in flags and flags[flag] != wanted:
                raise ValueError(
                    f"args: {flag} {flags[flag]} differs from parallelism.{to_camel(key)} {wanted}: leave it out"
                )
        if "--num-layers-per-virtual-pipeline-stage" in flags:
            raise ValueError("args: give parallelism.virtualPipeline, not --num-layers-per-virtual-pipeline-stage")
        for flag, key in FORWARD_FLAGS.items():
            if self.plugins.fbd.enabled and flag in flags:
                raise ValueError(f"args: give plugins.fbd.{key}, not {flag}: the job's size depends on it")
        return self

    @model_validator(mode="after")
    def _args_have_what_they_need(self) -> Self:
        """Of what else no rank has to be started for. A command of one's own may take the same flags otherwise."""
        flags, sizes = flag_values(self.args), self.parallelism
        layers, parts = flags.get("--num-layers", ""), sizes.pipeline * sizes.virtual_pipeline
        if self.command:
            return self
        if layers.isascii() and layers.isdecimal() and int(layers) % parts:
            raise ValueError(
                f"args: --num-layers {layers} is no multiple of parallelism.pipeline x virtualPipeline = "
                f"{sizes.pipeline} x {sizes.virtual_pipeline} = {parts}: change one of them"
            )
        if flags.get("--dpp-policy") == "replay" and "--dpp-order" not in flags:
            raise ValueError("args: --dpp-policy replay needs the order to run: add --dpp-order FILE.csv")
        return self

    @model_validator(mode="after")
    def _plugins_have_a_trainer(self) -> Self:
        """Whoever runs a command of their own may run anything: nothing would read what `plugins` asks for.

        `scan` is on by default, so that nobody has asked for it. `attach` brings it and `scope` to the command.
        """
        brought = {"scan", "scope"} if self.attach else {"scan"}
        asked = [name for name in self.plugins.enabled if name not in brought]
        if self.command and asked:
            raise ValueError(
                f"plugins.{asked[0]} needs the platform's own launcher: leave out command, or turn the plug-in off "
                "and give your command its flags in args"
            )
        return self

    @model_validator(mode="after")
    def _dpp_has_its_pipeline(self) -> Self:
        dpp, sizes = self.plugins.dpp, self.parallelism
        if not dpp.enabled:
            return self
        if sizes.pipeline < 2:
            raise ValueError("plugins.dpp needs parallelism.pipeline of at least 2: it orders what stages do")
        if dpp.cap is not None and dpp.cap < sizes.virtual_pipeline:
            raise ValueError(
                f"plugins.dpp.cap {dpp.cap} can stop for ever: it must be at least parallelism.virtualPipeline = "
                f"{sizes.virtual_pipeline}"
            )
        if dpp.policy in ZERO_BUBBLE_POLICIES and sizes.virtual_pipeline > 1:
            raise ValueError(
                f"plugins.dpp.policy {dpp.policy} takes one chunk a stage: leave parallelism.virtualPipeline at 1"
            )
        return self

    @model_validator(mode="after")
    def _attached_is_the_users(self) -> Self:
        if self.attach and not (self.image and self.command):
            raise ValueError("attach needs image and command: what is attached to is yours")
        if self.attach and not self.plugins.scan.enabled:
            raise ValueError("attach is MegaScan: turn plugins.scan.enabled on, or leave attach out")
        return self

    @model_validator(mode="after")
    def _serving_is_one_replica(self) -> Self:
        if self.mode != "serve":
            return self
        if self.command:
            raise ValueError("mode serve needs the platform's own launcher: leave out command")
        others = [name for name in self.plugins.enabled if name not in ("scan", "scope")]
        if others or not self.plugins.scope.enabled:
            raise ValueError(
                "mode serve needs plugins.scope.enabled, which is how people ask, and no megatrace, dpp, fbd or faults"
            )
        if not {"--load", "--checkpoint"} & flag_values(self.args).keys():
            raise ValueError("mode serve needs a checkpoint: give args --load with a folder in one of storage")
        sizes = self.parallelism
        if self.world_size != sizes.tensor * sizes.pipeline or self.elastic is not None:
            raise ValueError(
                f"mode serve runs one replica: nodes x procPerNode = {self.world_size} must be tensor x pipeline = "
                f"{sizes.tensor} x {sizes.pipeline}, without context, expert and elastic"
            )
        return self

    def trainer_args(self, scenario_file: str = "") -> list[str]:
        """All of the trainer's flags: those of `parallelism` and of the plug-ins that are on, then `args`.

        `scenario_file` is where the rank finds the fault scenario.
        """
        given = flag_values(self.args)
        flags: list[str] = []
        for flag, key in PARALLELISM_FLAGS.items():
            size = getattr(self.parallelism, key)
            if size > 1 and flag not in given:
                flags += [flag, str(size)]
        plugins = self.plugins
        if self.mode == "serve":
            return ["--serve", *flags, "--require-plugins", "scope", *plugins.scope.flags, *self.args]
        if "--trace" not in given:
            flags += plugins.scan.flags
        if scenario_file:
            flags += ["--fault-scenario", scenario_file]
        # The image may lack a plug-in: its trainer then refuses to start. The others say it by flags of their own.
        required = [name for name in plugins.enabled if name not in {"scan", "faults"}]
        if required:
            flags += ["--require-plugins", *required]
        flags += [*plugins.megatrace.flags, *plugins.scope.flags, *plugins.dpp.flags, *plugins.fbd.flags]
        return [*flags, *self.args]


PARALLELISM_FLAGS = {
    "--tensor-model-parallel-size": "tensor",
    "--pipeline-model-parallel-size": "pipeline",
    "--context-parallel-size": "context",
    "--expert-model-parallel-size": "expert",
    "--num-virtual-stages-per-pipeline-rank": "virtual_pipeline",
}
FORWARD_FLAGS = {
    "--ignore-forward-tensor-parallel": "ignoreForwardTensorParallel",
    "--forward-tensor-model-parallel-size": "forwardTensor",
    "--forward-pipeline-model-parallel-size": "forwardPipeline",
    "--fbd-mode": "mode",
}


def flag_values(args: list[str]) -> dict[str, str]:
    """Flags and the first values of their last use; both `--flag value` and `--flag=value`."""
    found: dict[str, str] = {}
    for argument, following in zip_longest(args, args[1:], fillvalue=""):
        if argument.startswith("--"):
            name, equals, value = argument.partition("=")
            found[name] = value if equals else following
    return found
