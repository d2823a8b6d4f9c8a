"""Accelerate's MegatronLMPlugin, and its YAML file: both are settings of the trainer under other names. No torch."""

from __future__ import annotations

import dataclasses
import difflib
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from megatronapp.core.errors import ConfigError, DataError

PREFIX = "megatron_lm_"
VARIABLES = "MEGATRON_LM_"
"""Begin the settings in a file, and those that a launcher hands on as environment variables."""
PRECISION = "ACCELERATE_MIXED_PRECISION"
_OF_LAUNCHING = frozenset(
    {
        "compute_environment",
        "debug",
        "deepspeed_config",
        "distributed_type",
        "downcast_bf16",
        "dynamo_config",
        "enable_cpu_affinity",
        "fsdp_config",
        "gpu_ids",
        "ipex_config",
        "machine_rank",
        "main_process_ip",
        "main_process_port",
        "main_training_function",
        "mpirun_config",
        "num_machines",
        "num_processes",
        "rdzv_backend",
        "same_network",
        "tpu_env",
        "tpu_use_cluster",
        "tpu_use_sudo",
        "use_cpu",
    }
)
"""What else such a file holds: how ranks are started. Of it num_processes is taken; the rest is torchrun's."""


@dataclass
class MegatronLMPlugin:
    """None: the trainer's default. `num_micro_batches`: of a step, on each data rank."""

    tp_degree: int | None = None
    pp_degree: int | None = None
    num_micro_batches: int | None = None
    gradient_clipping: float | None = None
    sequence_parallelism: bool | None = None
    recompute_activations: bool | None = None
    recompute_granularity: str | None = None
    recompute_method: str | None = None
    recompute_num_layers: int | None = None
    use_distributed_optimizer: bool | None = None
    expert_model_parallel_size: int | None = None
    context_parallel_size: int | None = None
    num_layers_per_virtual_pipeline_stage: int | None = None
    attention_backend: str | None = None
    no_load_optim: bool | None = None
    no_save_optim: bool | None = None
    seq_length: int | None = None
    decoder_seq_length: int | None = None
    eval_iters: int | None = None
    eval_interval: int | None = None
    tensorboard_dir: str | None = None
    is_train_batch_min: bool = True
    return_logits: bool = False
    megatron_dataset_flag: bool = False
    custom_train_step_class: Any = None
    custom_train_step_kwargs: dict[str, Any] | None = None
    other_megatron_args: dict[str, Any] = field(default_factory=dict)
    global_batch_size: int | None = None
    """Known when a model was prepared."""

    def __post_init__(self) -> None:
        for name, value in from_environment(os.environ).items():
            if getattr(self, name) is None:
                setattr(self, name, value)
        if self.num_micro_batches is None:
            self.num_micro_batches = 1

    def flags(self) -> list[str]:
        """All but the batch."""
        flags: list[str] = []
        for name, flag in _FLAGS.items():
            value = getattr(self, name)
            if value is True:
                flags.append(flag)
            elif value not in (None, False):
                flags += [flag, str(value)]
        return flags


_FLAGS = {
    "tp_degree": "--tensor-model-parallel-size",
    "pp_degree": "--pipeline-model-parallel-size",
    "gradient_clipping": "--clip-grad",
    "sequence_parallelism": "--sequence-parallel",
    "recompute_activations": "--recompute-activations",
    "recompute_granularity": "--recompute-granularity",
    "recompute_method": "--recompute-method",
    "recompute_num_layers": "--recompute-num-layers",
    "use_distributed_optimizer": "--use-distributed-optimizer",
    "expert_model_parallel_size": "--expert-model-parallel-size",
    "context_parallel_size": "--context-parallel-size",
    "num_layers_per_virtual_pipeline_stage": "--num-layers-per-virtual-pipeline-stage",
    "attention_backend": "--attention-backend",
    "no_load_optim": "--no-load-optim",
    "no_save_optim": "--no-save-optim",
    "seq_length": "--seq-length",
    "decoder_seq_length": "--decoder-seq-length",
    "eval_iters": "--eval-iters",
    "eval_interval": "--eval-interval",
    "tensorboard_dir": "--tensorboard-dir",
}
_TYPES = {each.name: str(each.type).removesuffix(" | None") for each in dataclasses.fields(MegatronLMPlugin)}
_SETTABLE = {*_FLAGS, "num_micro_batches"}


@dataclass(frozen=True, kw_only=True)
class AccelerateConfig:
    """A YAML file that `accelerate config` wrote."""

    processes: int
    precision: str
    settings: Mapping[str, Any]

    @classmethod
    def read(cls, file: Path) -> AccelerateConfig:
        """Raises ConfigError, which names what is not understood."""
        try:
            document = yaml.safe_load(file.read_text())
        except (OSError, UnicodeDecodeError, yaml.YAMLError, RecursionError) as error:
            raise ConfigError(f"{file} can't be read as YAML: {' '.join(str(error).split())[:200]}") from error
        if not isinstance(document, dict) or document.get("distributed_type") != "MEGATRON_LM":
            raise ConfigError(f"{file} is no configuration of Accelerate with distributed_type: MEGATRON_LM")
        _refuse_unknown(file, document, {*_OF_LAUNCHING, f"{PREFIX}config", "mixed_precision"})
        own = document.get(f"{PREFIX}config") or {}
        if not isinstance(own, dict):
            raise ConfigError(f"{file}: {PREFIX}config is no mapping")
        _refuse_unknown(file, own, {PREFIX + name for name in _SETTABLE})
        try:
            return cls(
                processes=_typed("num_processes", document.get("num_processes", 1), "int"),
                precision=_precision(document.get("mixed_precision", "no")),
                settings={
                    name.removeprefix(PREFIX): _typed(name, value, _TYPES[name.removeprefix(PREFIX)])
                    for name, value in own.items()
                },
            )
        except DataError as error:
            raise ConfigError(f"{file}: {error}") from error

    def variables(self) -> dict[str, str]:
        """For a script's ranks, as Accelerate's launcher sets them."""
        named = {VARIABLES + name.upper(): str(value) for name, value in self.settings.items() if value is not None}
        return {**named, PRECISION: self.precision}

    def flags(self) -> list[str]:
        """For the trainer itself; --global-batch-size follows from --micro-batch-size."""
        plugin = MegatronLMPlugin(**self.settings)
        return [*plugin.flags(), *precision_flags(self.precision)]


def precision_flags(precision: str) -> list[str]:
    """Raises DataError."""
    return {"no": [], "bf16": ["--bf16"], "fp16": ["--fp16"]}[_precision(precision)]


def from_environment(variables: Mapping[str, str]) -> dict[str, Any]:
    """What a launcher handed on. Raises DataError."""
    found = {name: variables.get(VARIABLES + name.upper()) for name in _SETTABLE}
    return {name: _typed(name, text, _TYPES[name]) for name, text in found.items() if text is not None}


def _precision(value: Any) -> str:
    text = "no" if value in (None, False) else str(value)
    if text not in ("no", "bf16", "fp16"):
        raise DataError(f"mixed_precision {text!r:.80}: take no, bf16 or fp16")
    return text


def _typed(name: str, value: Any, kind: str) -> Any:
    words = {"true": True, "yes": True, "1": True, "false": False, "no": False, "0": False}
    try:
        if value is None or kind == "str":
            return value if value is None else str(value)
        if kind == "bool":
            return words[str(value).lower()]
        if isinstance(value, bool):
            raise ValueError
        return int(str(value)) if kind == "int" else float(value)
    except (LookupError, TypeError, ValueError):
        raise DataError(f"{name} is {value!r:.80}, no {kind}") from None


def _refuse_unknown(file: Path, given: Mapping[Any, Any], known: set[str]) -> None:
    for name in given:
        if name not in known:
            near = difflib.get_close_matches(str(name), known, n=1, cutoff=0.75)
            hint = f"did you mean {near[0]}?" if near else "docs/from-accelerate.md lists what is known; remove it"
            raise ConfigError(f"{file}: {name!r:.80} is not understood; {hint}")
