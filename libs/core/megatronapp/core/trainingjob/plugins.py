"""The plug-ins that a TrainingJob asks for, and the trainer's flags that ask for them."""

from __future__ import annotations

from typing import Literal, Self

from pydantic import Field, field_validator, model_validator

from megatronapp.core.scenario import Scenario
from megatronapp.core.trace.limits import MAX_TRACE_INTERVAL
from megatronapp.core.trainingjob.base import Model, ObjectName

MAX_CAP = 1 << 20
MAX_FORWARD = 1024
MAX_RING_MIB = 512
DPP_POLICIES = {
    "Auto": "auto",
    "Interleaved": "interleaved",
    "InterleavedZb": "interleaved-zb",
    "DepthFirst": "depth-first",
    "BreadthFirst": "breadth-first",
    "ZbH1": "zb-h1",
    "ZbH2": "zb-h2",
}
"""As the trainer's flag has them."""
ZERO_BUBBLE_POLICIES = ("ZbH1", "ZbH2")
SPLIT_POLICIES = ("InterleavedZb", *ZERO_BUBBLE_POLICIES)


class ScanPlugin(Model):
    """MegaScan: a window of `continuousIterations` steps every `interval` steps is traced in detail."""

    enabled: bool = True
    interval: int = Field(default=5, ge=1, le=MAX_TRACE_INTERVAL)
    continuous_iterations: int = Field(default=2, ge=1, le=MAX_TRACE_INTERVAL)
    granularity: Literal["base", "full"] = "full"

    @property
    def flags(self) -> list[str]:
        if not self.enabled:
            return []
        flags = ["--trace", "--trace-interval", str(self.interval), "--trace-granularity", self.granularity]
        return [*flags, "--continuous-trace-iterations", str(self.continuous_iterations)]


class ScopePlugin(Model):
    enabled: bool = False

    @property
    def flags(self) -> list[str]:
        return ["--scope"] if self.enabled else []


class MegatracePlugin(Model):
    """Every collective and message of NCCL, whoever calls it: calls, also their times on the GPU, or all: also what
    its network transfers wait for."""

    enabled: bool = False
    level: Literal["calls", "times", "all"] = "times"
    ring_mib: int = Field(
        default=8,
        ge=1,
        le=MAX_RING_MIB,
        description="a power of two; of each rank: records that its agent has not read yet",
    )

    @field_validator("ring_mib")
    @classmethod
    def _power_of_two(cls, mib: int) -> int:
        if mib & mib - 1:
            raise ValueError(f"plugins.megatrace.ringMib {mib}: take a power of two, 1 to {MAX_RING_MIB}")
        return mib

    @property
    def flags(self) -> list[str]:
        if not self.enabled:
            return []
        return ["--nccl-trace", self.level, "--nccl-trace-ring-mib", str(self.ring_mib)]


class DppPlugin(Model):
    """MegaDPP: stages choose their next operation while they run. Auto goes back to megatron-core's schedule where that
    is measured faster."""

    enabled: bool = False
    policy: Literal["Auto", "Interleaved", "InterleavedZb", "DepthFirst", "BreadthFirst", "ZbH1", "ZbH2"] = "Auto"
    cap: int | None = Field(default=None, ge=1, le=MAX_CAP, description="activations that a stage holds at most")
    split: bool = Field(default=True, description="put the gradients of weights off, where the model allows it")
    transport: Literal["auto", "shm", "cuda_ipc", "tcp", "ucx"] = "auto"

    @model_validator(mode="after")
    def _places_for_w_need_the_split(self) -> Self:
        if self.enabled and self.policy in SPLIT_POLICIES and not self.split:
            raise ValueError(f"policy {self.policy} puts W off: leave split at true, or take another policy")
        return self

    @property
    def flags(self) -> list[str]:
        if not self.enabled:
            return []
        cap = [] if self.cap is None else ["--dpp-cap", str(self.cap)]
        split = [] if self.split else ["--dpp-no-split"]
        return ["--use-dpp", "--dpp-policy", DPP_POLICIES[self.policy], *cap, *split, "--dpp-transport", self.transport]


class FbdPlugin(Model):
    """MegaFBD: of each replica some ranks run forward, others backward, of which `parallelism` speaks."""

    enabled: bool = False
    mode: Literal["Input", "Linears", "Layers", "Auto"] | None = Field(
        default=None, description="what backward ranks get; Auto: what pays, and an error where nothing does"
    )
    ignore_forward_tensor_parallel: bool = Field(default=False, description="one forward rank for TP backward ranks")
    forward_tensor: int | None = Field(
        default=None, ge=1, le=MAX_FORWARD, description="tensor-parallel forward ranks; default: parallelism.tensor"
    )
    forward_pipeline: int | None = Field(
        default=None, ge=1, le=MAX_FORWARD, description="pipeline stages of them; default: parallelism.pipeline"
    )
    forward_node_selector: dict[str, str] = Field(
        default_factory=dict,
        max_length=64,
        description="nodes of the forward ranks, which then get pods of their own, in place of scheduling.nodeSelector",
    )

    @model_validator(mode="after")
    def _one_tensor_size(self) -> Self:
        if self.ignore_forward_tensor_parallel and self.forward_tensor not in (None, 1):
            raise ValueError("ignoreForwardTensorParallel means forwardTensor 1: give one of them")
        return self

    @property
    def apart(self) -> bool:
        """Whether forward ranks have pods of their own."""
        return self.enabled and bool(self.forward_node_selector)

    def forward_tensor_ranks(self, tensor: int) -> int:
        """That share a layer, beside so many backward ranks."""
        return 1 if self.ignore_forward_tensor_parallel else self.forward_tensor or tensor

    def forward_ranks(self, tensor: int, pipeline: int) -> int:
        """Of a replica with backward ranks of these sizes."""
        return self.forward_tensor_ranks(tensor) * (self.forward_pipeline or pipeline)

    @property
    def flags(self) -> list[str]:
        if not self.enabled:
            return []
        switch = [] if self.mode is None else ["--fbd-mode", self.mode.lower()]
        switch += ["--ignore-forward-tensor-parallel"] if self.ignore_forward_tensor_parallel else []
        for name, size in (("tensor", self.forward_tensor), ("pipeline", self.forward_pipeline)):
            switch += [] if size is None else [f"--forward-{name}-model-parallel-size", str(size)]
        switch += ["--fbd-roles-apart"] if self.apart else []
        return ["--forward-backward-disaggregating", *switch]


class ConfigMapKey(Model):
    name: ObjectName
    key: ObjectName


class FaultsPlugin(Model):
    """Faults injected on purpose, inline or from a ConfigMap in the job's namespace."""

    scenario: Scenario | None = None
    scenario_from: ConfigMapKey | None = None

    @model_validator(mode="after")
    def _one_source(self) -> Self:
        if self.scenario is not None and self.scenario_from is not None:
            raise ValueError("give scenario or scenarioFrom, not both")
        return self


class Plugins(Model):
    scan: ScanPlugin = ScanPlugin()
    megatrace: MegatracePlugin = MegatracePlugin()
    scope: ScopePlugin = ScopePlugin()
    dpp: DppPlugin = DppPlugin()
    fbd: FbdPlugin = FbdPlugin()
    faults: FaultsPlugin = FaultsPlugin()

    @property
    def enabled(self) -> list[str]:
        """Names of those that are on."""
        switches = {
            "scan": self.scan.enabled,
            "megatrace": self.megatrace.enabled,
            "scope": self.scope.enabled,
            "dpp": self.dpp.enabled,
            "fbd": self.fbd.enabled,
        }
        names = [name for name, enabled in switches.items() if enabled]
        injects = self.faults.scenario_from is not None or (self.faults.scenario and self.faults.scenario.faults)
        return [*names, "faults"] if injects else names
