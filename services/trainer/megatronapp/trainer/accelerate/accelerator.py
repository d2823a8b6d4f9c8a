"""Accelerate's Accelerator for distributed_type MEGATRON_LM, over the trainer's engine."""

from __future__ import annotations

import atexit
import os
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from enum import StrEnum
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.utils.data import DataLoader

import megatronapp.trainer.lean_imports  # noqa: F401  before anything of megatron-core

# isort: split
from megatron.core import parallel_state

from megatronapp.core.errors import UsageError
from megatronapp.core.logging import configure, get_logger
from megatronapp.trainer.accelerate import flags as of
from megatronapp.trainer.accelerate.plugin import PRECISION, MegatronLMPlugin, precision_flags
from megatronapp.trainer.accelerate.prepared import (
    IndexedLoader,
    MegatronLMDummyDataLoader,
    MegatronLMDummyScheduler,
    PreparedLoader,
    PreparedModel,
    PreparedOptimizer,
    PreparedScheduler,
)
from megatronapp.trainer.engine import MegatronEngine, gather_across_data_parallel_groups
from megatronapp.trainer.environment import Environment

log = get_logger(__name__)
_NO_END = 1_000_000
"""Steps where nothing says how many: the learning rate stays as it is."""


class DistributedType(StrEnum):
    NO = "NO"
    MULTI_CPU = "MULTI_CPU"
    MULTI_GPU = "MULTI_GPU"
    DEEPSPEED = "DEEPSPEED"
    FSDP = "FSDP"
    MEGATRON_LM = "MEGATRON_LM"


class AcceleratorState:
    def __init__(self, plugin: MegatronLMPlugin, precision: str) -> None:
        self.megatron_lm_plugin = plugin
        self.mixed_precision = precision
        self.distributed_type = DistributedType.MEGATRON_LM


class Accelerator:
    """Settings come from `megatron_lm_plugin`, else from the launcher's environment variables."""

    def __init__(
        self,
        *,
        mixed_precision: str | None = None,
        gradient_accumulation_steps: int = 1,
        megatron_lm_plugin: MegatronLMPlugin | None = None,
        log_with: Any = None,
        project_dir: str | None = None,
        **others: Any,
    ) -> None:
        """Raises UsageError for what the engine does not do."""
        configure()
        if others:
            raise UsageError(f"Accelerator({', '.join(sorted(others))}=…) is not understood: docs/from-accelerate.md")
        if gradient_accumulation_steps != 1:
            raise UsageError("gradient_accumulation_steps must be 1: set num_micro_batches of MegatronLMPlugin")
        precision = mixed_precision or os.environ.get(PRECISION, "no")
        self.state = AcceleratorState(megatron_lm_plugin or MegatronLMPlugin(), precision)
        self.distributed_type = DistributedType.MEGATRON_LM
        self.gradient_accumulation_steps = 1
        self.sync_gradients = True
        self._environment = Environment.read()
        self._engine: MegatronEngine | None = None
        self._tracked = log_with is not None
        self._folder = project_dir

    # ---- ranks

    @property
    def process_index(self) -> int:
        return self._environment.rank

    @property
    def num_processes(self) -> int:
        return self._environment.world_size

    @property
    def is_main_process(self) -> bool:
        """The last rank, which knows losses and logits."""
        return self.process_index == self.num_processes - 1

    is_local_main_process = is_last_process = is_main_process

    @property
    def device(self) -> torch.device:
        if self._engine is not None:
            return self._engine.device
        return torch.device("cuda", self._environment.local_rank) if torch.cuda.is_available() else torch.device("cpu")

    def print(self, *values: Any, **options: Any) -> None:
        if self.is_main_process:
            print(*values, **options)

    def wait_for_everyone(self) -> None:
        if dist.is_initialized():
            dist.barrier()

    @contextmanager
    def main_process_first(self) -> Iterator[None]:
        if not self.is_main_process:
            self.wait_for_everyone()
        yield
        if self.is_main_process:
            self.wait_for_everyone()

    local_main_process_first = main_process_first

    # ---- preparing

    def prepare(self, *objects: Any) -> Any:
        """A model, its optimizer, data and schedule, in the same order. The model has first weights."""
        model = next((each for each in objects if _is_model(each)), None)
        if model is None:
            raise UsageError("prepare needs a model: one object with a Transformers `config`, beside its data")
        self._engine = MegatronEngine(
            self._flags(model, objects),
            train_step=self.state.megatron_lm_plugin.custom_train_step_class,
            train_step_kwargs=self.state.megatron_lm_plugin.custom_train_step_kwargs,
        )
        self.state.megatron_lm_plugin.global_batch_size = self._engine.global_batch_size
        atexit.register(self._close_at_exit)
        prepared = tuple(self._prepared(each, model) for each in objects)
        return prepared if len(prepared) > 1 else prepared[0]

    def _prepared(self, given: Any, model: Any) -> Any:
        engine = self.engine
        if given is model:
            return PreparedModel(engine, model.config, return_logits=self.state.megatron_lm_plugin.return_logits)
        if isinstance(given, torch.optim.Optimizer):
            return PreparedOptimizer(engine)
        if isinstance(given, MegatronLMDummyScheduler):
            return PreparedScheduler(engine)
        if isinstance(given, MegatronLMDummyDataLoader):
            return IndexedLoader()
        if isinstance(given, DataLoader):
            rows = engine.microbatches * engine.config.training.micro_batch_size
            rank, ranks = parallel_state.get_data_parallel_rank(), parallel_state.get_data_parallel_world_size()
            return PreparedLoader(given, rows, rank, ranks, engine.config.training.seed)
        raise UsageError(
            f"prepare does not take a {type(given).__name__}: give the model, a torch optimizer, DataLoaders or "
            "MegatronLMDummyDataLoader, and MegatronLMDummyScheduler"
        )

    def _flags(self, model: Any, objects: tuple[Any, ...]) -> list[str]:
        """Later ones win."""
        plugin, config = self.state.megatron_lm_plugin, model.config.to_dict()
        others = dict(plugin.other_megatron_args)
        length = plugin.seq_length or of.longest(config)
        flags = [*of.model_flags(config), *precision_flags(self.state.mixed_precision), "--seq-length", str(length)]
        if not {"vocab_file", "tokenizer_model", "tokenizer_type"} & others.keys():
            flags += of.vocabulary_flags(config)
        flags += ["--num-workers", "0", "--eval-iters", "0", "--log-interval", "1"]
        flags += [word for each in objects for word in _flags_of(each)]
        flags += [*plugin.flags(), *of.other_flags(others)]
        return self._with_batch(flags)

    def _with_batch(self, flags: list[str]) -> list[str]:
        plugin = self.state.megatron_lm_plugin
        micro = int(_last(flags, "--micro-batch-size", "1"))
        sizes = [int(_last(flags, f"--{name}-parallel-size", "1")) for name in ("tensor-model", "pipeline-model")]
        data = self.num_processes // (sizes[0] * sizes[1] * int(_last(flags, "--context-parallel-size", "1")))
        batch = micro * int(plugin.num_micro_batches or 1) * max(data, 1)
        missing = [] if "--train-iters" in flags else ["--train-iters", str(_NO_END), "--lr-decay-style", "constant"]
        return [*flags, *missing, *([] if "--lr" in flags else ["--lr", "1e-4"]), "--global-batch-size", str(batch)]

    @property
    def engine(self) -> MegatronEngine:
        """Raises UsageError before `prepare`."""
        if self._engine is None:
            raise UsageError("call prepare first: it builds the model")
        return self._engine

    # ---- in the loop

    @contextmanager
    def accumulate(self, *_: Any) -> Iterator[None]:
        yield

    def backward(self, loss: Any, **_: Any) -> None:
        """The model's call has done it."""

    def clip_grad_norm_(self, *_: Any, **__: Any) -> None:
        """The model's call has done it, to `gradient_clipping`."""

    def gather(self, values: torch.Tensor) -> torch.Tensor:
        return gather_across_data_parallel_groups(values)

    gather_for_metrics = gather

    def unwrap_model(self, model: Any, **_: Any) -> Any:
        return model

    # ---- checkpoints and the end

    def save_state(self, output_dir: str | Path | None = None, **_: Any) -> str:
        """A checkpoint of the trainer, which loads under any layout."""
        return str(self.engine.save(output_dir or self._folder))

    def load_state(self, input_dir: str | Path | None = None, **_: Any) -> None:
        folder = input_dir or self._folder
        if folder is None:
            raise UsageError("load_state needs the folder that save_state was given")
        self.engine.load(folder)

    def register_for_checkpointing(self, *_: Any) -> None:
        """The schedule is part of every checkpoint."""

    def init_trackers(self, project_name: str, config: Mapping[str, Any] | None = None, **_: Any) -> None:
        if self._tracked and self.is_main_process:
            log.info("tracking", project=project_name, **{"config": dict(config or {})})

    def log(self, values: Mapping[str, Any], step: int | None = None, **_: Any) -> None:
        if self.is_main_process:
            log.info("logged", step=step, **{name.replace(" ", "_"): value for name, value in values.items()})

    def end_training(self) -> None:
        """All ranks leave together; done at exit where a script does not call it."""
        if self._engine is not None:
            self._engine.close()
            self._engine = None

    def _close_at_exit(self) -> None:
        if not hasattr(sys, "last_value"):  # after an error the other ranks may be gone
            self.end_training()


def _is_model(given: Any) -> bool:
    return hasattr(getattr(given, "config", None), "to_dict")


def _flags_of(given: Any) -> list[str]:
    """What an object of `prepare` says about the run."""
    if isinstance(given, MegatronLMDummyDataLoader):
        return ["--eval-iters", "100", *of.other_flags(given.dataset_args)]
    if isinstance(given, DataLoader):
        return ["--micro-batch-size", str(given.batch_size or 1)]
    if isinstance(given, MegatronLMDummyScheduler):
        steps = given.total_num_steps or _NO_END
        return ["--train-iters", str(steps), "--lr-warmup-iters", str(given.warmup_num_steps)]
    if isinstance(given, torch.optim.Optimizer):
        return _optimizer_flags(given)
    return []


def _optimizer_flags(optimizer: torch.optim.Optimizer) -> list[str]:
    group = optimizer.param_groups[0]
    flags = ["--lr", repr(float(group["lr"])), "--weight-decay", repr(float(group.get("weight_decay", 0.0)))]
    if isinstance(optimizer, torch.optim.SGD):
        return [*flags, "--optimizer", "sgd", "--sgd-momentum", repr(float(group["momentum"]))]
    if "betas" in group:
        first, second = group["betas"]
        flags += ["--adam-beta1", repr(first), "--adam-beta2", repr(second), "--adam-eps", repr(group["eps"])]
    return flags


def _last(flags: list[str], name: str, default: str) -> str:
    places = [index for index, flag in enumerate(flags) if flag == name]
    return flags[places[-1] + 1] if places else default
