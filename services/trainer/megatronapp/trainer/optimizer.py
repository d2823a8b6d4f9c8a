"""Optimizer and learning-rate schedule: megatron-core's, from the trainer's settings."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from typing import Any

import megatron.core.optimizer as megatron_optimizers
import torch
from megatron.core.distributed import DistributedDataParallel, finalize_model_grads
from megatron.core.optimizer import OptimizerConfig as MegatronOptimizerConfig
from megatron.core.optimizer import get_megatron_optimizer, get_standard_config_overrides
from megatron.core.optimizer.distrib_optimizer import DistributedOptimizer
from megatron.core.optimizer_param_scheduler import OptimizerParamScheduler
from megatron.core.transformer.transformer_config import TransformerConfig

from megatronapp.core.errors import UsageError
from megatronapp.trainer.config import OptimizerConfig, ScheduleConfig, TrainerConfig
from megatronapp.trainer.host_optimizer import HostAdam
from megatronapp.trainer.optimizer_parts import parts_of
from megatronapp.trainer.patches import Patches

OptimizerProvider = Callable[[MegatronOptimizerConfig, list[DistributedDataParallel]], Any]
"""An optimizer of one's own over the chunks' parameters, with the interface of megatron-core's MegatronOptimizer."""
SchedulerProvider = Callable[[Any], Any]
"""From the optimizer a schedule of its learning rate, with the interface of megatron-core's OptimizerParamScheduler."""


def build_optimizer(
    config: TrainerConfig,
    chunks: list[DistributedDataParallel],
    transformer: TransformerConfig,
    provider: OptimizerProvider | None = None,
) -> Any:
    """The optimizer over all chunks, and the callbacks by which the pipeline schedule reaches gradients and weights."""
    options = _options(config, transformer)
    on_the_host = config.optimizer.optimizer_cpu_offload
    with _torchs_adam() if on_the_host else nullcontext():
        optimizer = (provider or _megatron_optimizer)(options, chunks)
    for part in parts_of(optimizer):
        if on_the_host:
            _move_to_the_host(part, config.optimizer.optimizer_offload_fraction)
        if isinstance(part, DistributedOptimizer) and isinstance(part.optimizer, torch.optim.Adam):
            _make_loadable(part)
    transformer.grad_scale_func = optimizer.scale_loss
    transformer.finalize_model_grads_func = finalize_model_grads
    if config.parallel.overlap_grad_reduce:
        transformer.no_sync_func = _one_or_all([chunk.no_sync for chunk in chunks])
        transformer.grad_sync_func = _one_or_all([chunk.start_grad_sync for chunk in chunks])
    if config.parallel.overlap_param_gather:
        transformer.param_sync_func = _one_or_all([chunk.start_param_sync for chunk in chunks])
    return optimizer


@contextmanager
def _torchs_adam() -> Iterator[None]:
    """Made in place of that of Transformer Engine or Apex, where one is installed."""
    patches = Patches()
    patches.set(megatron_optimizers, "USING_PYTORCH_OPTIMIZER", True)
    try:
        yield
    finally:
        patches.restore()


def _megatron_optimizer(options: MegatronOptimizerConfig, chunks: list[DistributedDataParallel]) -> Any:
    return get_megatron_optimizer(options, chunks, config_overrides=get_standard_config_overrides(options))


def _options(config: TrainerConfig, transformer: TransformerConfig) -> MegatronOptimizerConfig:
    settings, training = config.optimizer, config.training
    return MegatronOptimizerConfig(
        optimizer=settings.optimizer,
        lr=config.schedule.lr,
        min_lr=config.schedule.min_lr,
        weight_decay=settings.weight_decay,
        adam_beta1=settings.adam_beta1,
        adam_beta2=settings.adam_beta2,
        adam_eps=settings.adam_eps,
        sgd_momentum=settings.sgd_momentum,
        clip_grad=settings.clip_grad,
        bf16=transformer.bf16,
        fp16=transformer.fp16,
        loss_scale=training.loss_scale,
        initial_loss_scale=training.initial_loss_scale,
        min_loss_scale=training.min_loss_scale,
        loss_scale_window=training.loss_scale_window,
        hysteresis=training.hysteresis,
        params_dtype=transformer.params_dtype,
        use_distributed_optimizer=config.parallel.use_distributed_optimizer,
        overlap_param_gather=config.parallel.overlap_param_gather,
    )


def _one_or_all(functions: list[Any]) -> Any:
    return functions[0] if len(functions) == 1 else functions


def _move_to_the_host(part: Any, fraction: float) -> None:
    """Raises UsageError."""
    if part.optimizer is None:  # this rank has no weights of this kind
        return
    if not isinstance(part.optimizer, torch.optim.AdamW):
        raise UsageError(
            f"--optimizer-cpu-offload holds the state of torch's AdamW, not of {type(part.optimizer).__name__}: leave "
            "it out"
        )
    part.optimizer = HostAdam(part.optimizer.param_groups, fraction)


def _make_loadable(optimizer: Any) -> None:
    """megatron-core loads a sharded optimizer state as Transformer Engine's Adam keeps it, without a step per
    parameter. torch's Adam, which stands in without Transformer Engine, gets its state at once, and the loader one
    method that passes over what the checkpoint does not hold."""
    inner = optimizer.optimizer
    for group in inner.param_groups:
        for parameter in group["params"]:
            inner.state[parameter] = inner.state[parameter] or {
                "step": torch.tensor(0.0),
                "exp_avg": torch.zeros_like(parameter.data),
                "exp_avg_sq": torch.zeros_like(parameter.data),
            }

    @torch.no_grad()
    def set_states(model_parameter: torch.nn.Parameter, tensors: dict[str, torch.Tensor]) -> None:
        group, order = optimizer.model_param_group_index_map[model_parameter]
        main = inner.param_groups[group]["params"][order]
        for key, target in {"param": main, **inner.state[main]}.items():
            if key in tensors:
                target.copy_(tensors[key])

    optimizer._set_main_param_and_optimizer_states = set_states


def build_scheduler(config: TrainerConfig, optimizer: Any) -> OptimizerParamScheduler:
    """Learning rate and weight decay as functions of the steps done. Raises UsageError on values that contradict."""
    schedule, settings = config.schedule, config.optimizer
    steps = config.training.train_iters
    decay_steps = schedule.lr_decay_iters or steps
    warmup_steps = _warmup_steps(schedule, decay_steps)
    start, end = _weight_decay(settings)
    if schedule.lr_decay_style == "WSD" and schedule.lr_wsd_decay_iters is None:
        raise UsageError("--lr-decay-style WSD needs --lr-wsd-decay-iters")
    if not 0 <= schedule.min_lr <= schedule.lr or schedule.lr_warmup_init > schedule.lr:
        raise UsageError("--min-lr and --lr-warmup-init must lie between 0 and --lr")
    return OptimizerParamScheduler(
        optimizer,
        init_lr=schedule.lr_warmup_init,
        max_lr=schedule.lr,
        min_lr=schedule.min_lr,
        lr_warmup_steps=warmup_steps,
        lr_decay_steps=decay_steps,
        lr_decay_style=schedule.lr_decay_style,
        start_wd=start,
        end_wd=end,
        wd_incr_steps=steps,
        wd_incr_style=settings.weight_decay_incr_style,
        use_checkpoint_opt_param_scheduler=False,
        override_opt_param_scheduler=True,  # after a restart the flags hold, the checkpoint gives the position alone
        wsd_decay_steps=schedule.lr_wsd_decay_iters,
        lr_wsd_decay_style=schedule.lr_wsd_decay_style,
    )


def _warmup_steps(schedule: ScheduleConfig, decay_steps: int) -> int:
    if schedule.lr_warmup_fraction is not None:
        if schedule.lr_warmup_iters:
            raise UsageError("give --lr-warmup-iters or --lr-warmup-fraction, not both")
        return int(schedule.lr_warmup_fraction * decay_steps)
    if not 0 <= schedule.lr_warmup_iters < decay_steps:
        raise UsageError(f"--lr-warmup-iters {schedule.lr_warmup_iters} must be less than {decay_steps} decay steps")
    return schedule.lr_warmup_iters


def _weight_decay(settings: OptimizerConfig) -> tuple[float, float]:
    start = settings.weight_decay if settings.start_weight_decay is None else settings.start_weight_decay
    end = settings.weight_decay if settings.end_weight_decay is None else settings.end_weight_decay
    if settings.weight_decay_incr_style == "constant" and start != end:
        raise UsageError("--start-weight-decay and --end-weight-decay differ: set --weight-decay-incr-style")
    if not 0 <= start <= end:
        raise UsageError("weight decay may grow from --start-weight-decay to --end-weight-decay, not shrink")
    return start, end
