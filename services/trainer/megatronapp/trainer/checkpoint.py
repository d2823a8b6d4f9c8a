"""Checkpoints of a training state, by all ranks together, read back under any layout (checkpoint_folder.py)."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from megatron.core import dist_checkpointing, parallel_state
from megatron.core.dist_checkpointing.core import CheckpointingException
from megatron.core.dist_checkpointing.mapping import ShardedObject
from megatron.core.distributed import DistributedDataParallel
from megatron.core.optimizer_param_scheduler import OptimizerParamScheduler
from megatron.core.utils import unwrap_model
from torch.distributed.checkpoint.api import CheckpointException

from megatronapp.core.errors import DataError, UsageError
from megatronapp.core.logging import get_logger
from megatronapp.trainer import adam_steps, extra_states, optimizer_crossing, random_states
from megatronapp.trainer.checkpoint_folder import RECIPE, Claim, folder_name, prepare, prune, publish, read_recipe
from megatronapp.trainer.checkpoint_writing import Write, Writing, collect_in_process, failed
from megatronapp.trainer.config import CheckpointConfig
from megatronapp.trainer.config_fields import Effect
from megatronapp.trainer.layout import Layout
from megatronapp.trainer.padded_buckets import gathered_with_padding
from megatronapp.trainer.parallel import on_first_rank
from megatronapp.trainer.recipe import RunRecipe, listed

log = get_logger(__name__)


@dataclass
class TrainingState:
    """All that a checkpoint holds. `consumed_samples` is the position in the data."""

    chunks: list[DistributedDataParallel]
    optimizer: Any
    scheduler: OptimizerParamScheduler
    layout: Layout
    distributed_optimizer: bool
    recipe: RunRecipe
    tokenizer_files: Mapping[str, bytes] = field(default_factory=dict)
    step: int = 0
    consumed_samples: int = 0
    loaded: bool = False
    """The weights are a checkpoint's, not first ones."""


# ---- saving


def save(
    state: TrainingState, claim: Claim, config: CheckpointConfig, traced: Callable[[Write], Write] = lambda write: write
) -> Path:
    """Write a checkpoint of `state`; every rank calls it. Returns its folder. `traced` wraps the writing of the rank's
    own part, in which it waits for no other.

    Raises TrainingError on all ranks when the attempt is stale, and UnavailableError when the disk does not take it;
    checkpoints written before stay as they are.
    """
    final = claim.folder / folder_name(state.step)
    try:
        request = _request(state, claim, config)
        write = traced(request.async_fn) if request.async_fn is not None else None
        request._replace(async_fn=write).execute_sync()
    except (OSError, CheckpointException) as error:
        raise failed(state.step, claim.folder, error) from error
    _publisher(state, claim, config)()
    return final


def begin_save(state: TrainingState, claim: Claim, config: CheckpointConfig) -> Writing:
    """As `save`, but the rank's own part is written while training goes on; every rank calls it, and `finish` of what
    it returns, before the next one. Raises as `save`, and `finish` does too."""
    try:
        request = _request(state, claim, config)
    except (OSError, CheckpointException) as error:
        raise failed(state.step, claim.folder, error) from error
    final = claim.folder / folder_name(state.step)
    return Writing(request, _publisher(state, claim, config), step=state.step, final=final)


def _request(state: TrainingState, claim: Claim, config: CheckpointConfig) -> Any:
    """What each rank has to write, and what all do afterwards."""
    partial = _partial(claim, state.step)
    on_first_rank(lambda: prepare(claim, partial))
    content = _sharded_state(state, config.no_save_optim, config.no_save_rng, is_loading=False)
    collect_in_process()
    return dist_checkpointing.save(content, str(partial), async_sharded_save=True)


def _partial(claim: Claim, step: int) -> Path:
    return claim.folder / f".{folder_name(step)}.partial"


def _publisher(state: TrainingState, claim: Claim, config: CheckpointConfig) -> Callable[[], None]:
    """What makes it the newest checkpoint; every rank calls it."""
    step, recipe, tokenizer_files = state.step, state.recipe, state.tokenizer_files
    partial, final = _partial(claim, step), claim.folder / folder_name(step)

    def finish() -> None:
        publish(claim, partial, final, step=step, recipe=recipe, tokenizer_files=tokenizer_files)
        if config.keep_last is not None:
            prune(claim, step=step, keep=config.keep_last)

    return lambda: on_first_rank(finish)


# ---- loading


def check_recipe(folder: Path, step: int, now: RunRecipe) -> None:
    """Whether a run of this recipe may go on from the checkpoint of `step`; one rank looks, before a model is built.

    Raises UsageError that names every flag which changes the forward pass, and DataError for an unreadable recipe.
    Other changes in training are logged.
    """
    checkpoint = folder / folder_name(step)
    saved = _saved_recipe(checkpoint)
    other_model = saved.differences(now, Effect.FORWARD)
    if other_model:
        raise UsageError(f"{checkpoint} was saved with {listed(other_model)}: give the same model and tokenizer")
    other_training = saved.differences(now, Effect.TRAINING)
    if other_training:
        log.info("checkpoint_recipe_differs", folder=str(checkpoint), saved_with=listed(other_training))


def check_plugins(folder: Path, step: int, now: RunRecipe) -> None:
    """As `check_recipe`, of what plug-ins changed in the model's configuration: known when they have done so, and
    before the model is built."""
    checkpoint = folder / folder_name(step)
    if not (checkpoint / RECIPE).exists():
        return
    found = read_recipe(checkpoint).plugin_differences(now)
    if found:
        raise UsageError(f"{checkpoint} was saved with {listed(found)}: give the same plug-ins and flags of theirs")


def load_weights(chunks: Sequence[torch.nn.Module], checkpoint: Path) -> None:
    """Only the weights, into the model's chunks of any layout; every rank calls it. Raises DataError."""
    weights = _sharded_weights(chunks)
    extra_states.leave_out_unsaved(weights.values(), checkpoint)
    try:
        loaded = dist_checkpointing.load(weights, str(checkpoint))
    except (CheckpointException, CheckpointingException, OSError) as error:
        raise DataError(f"the weights in {checkpoint} don't fit its recipe: {str(error)[:300]}") from error
    for index, chunk in enumerate(chunks):
        extra_states.load_into(chunk, loaded[_chunk_key(index)], checkpoint)


def _saved_recipe(checkpoint: Path) -> RunRecipe:
    if (checkpoint / RECIPE).exists():
        return read_recipe(checkpoint)
    common = dist_checkpointing.load_common_state_dict(str(checkpoint))
    if "shape" not in common:
        raise DataError(f"{checkpoint} was not written by this trainer")
    log.warning(
        "checkpoint_without_recipe", folder=str(checkpoint), hint="of an earlier version: only its shape is compared"
    )
    return RunRecipe.from_shape(common["shape"])


def load(state: TrainingState, folder: Path, step: int, config: CheckpointConfig, *, fresh: bool) -> None:
    """Fill `state` from the checkpoint of `step`; every rank calls it. The layout may differ from the one saved.

    `fresh`: a new run starts from another one's checkpoint, and may take less than all of it (--finetune, --no-load-*).
    Random states are loaded only into the same layout; under another one the seeds of a fresh start are kept.
    Raises DataError when the checkpoint's content does not fit the flags.
    """
    checkpoint = folder / folder_name(step)
    common = dist_checkpointing.load_common_state_dict(str(checkpoint))
    if "step" not in common or "layout" not in common:
        raise DataError(f"{checkpoint} was not written by this trainer")
    if of_no_run := "scheduler" not in common:
        log.info("checkpoint_of_weights_alone", folder=str(checkpoint), hint="optimizer, schedule and data start anew")
    weights_only = (fresh and config.finetune) or of_no_run
    without_optimizer = weights_only or (fresh and config.no_load_optim) or not common["has_optimizer"]
    without_random = weights_only or (fresh and config.no_load_rng) or not common["has_random"]
    crosses = not without_optimizer and optimizer_crossing.is_needed(
        state.optimizer, common, distributed=state.distributed_optimizer
    )
    if common["layout"] != _layout_key(state.layout):
        log.info("checkpoint_resharded", saved=common["layout"], now=_layout_key(state.layout))
        without_random = True
    content = _sharded_state(state, without_optimizer or crosses, without_random, is_loading=True)
    chunks = {_chunk_key(index): chunk for index, chunk in enumerate(unwrap_model(state.chunks))}
    extra_states.leave_out_unsaved((content[key] for key in chunks), checkpoint)
    loaded = dist_checkpointing.load(content, str(checkpoint))
    for key, chunk in chunks.items():
        extra_states.load_into(chunk, loaded[key], checkpoint)
    if crosses:
        weights = _sharded_weights(unwrap_model(state.chunks))
        optimizer_crossing.load(state.optimizer, weights, checkpoint, common)
    elif not without_optimizer:
        _load_optimizer(state.optimizer, loaded["optimizer"], adam_steps.saved_steps(common))
    else:
        state.optimizer.reload_model_params()
    if not weights_only:
        state.scheduler.load_state_dict(loaded["scheduler"])
        state.step, state.consumed_samples = loaded["step"], loaded["consumed_samples"]
    if not without_random:
        random_states.restore(loaded["random"])


def _load_optimizer(optimizer: Any, loaded: Any, steps: int | None) -> None:
    if steps is not None:
        adam_steps.fit_to_adam(optimizer, loaded, steps)
    optimizer.load_state_dict(loaded)
    if steps is not None:
        adam_steps.set_steps(optimizer, steps)


def _sharded_state(
    state: TrainingState, without_optimizer: bool, without_random: bool, *, is_loading: bool
) -> dict[str, Any]:
    weights = _sharded_weights(unwrap_model(state.chunks))
    content: dict[str, Any] = {
        "step": state.step,
        "consumed_samples": state.consumed_samples,
        "layout": _layout_key(state.layout),
        "distributed_optimizer": state.distributed_optimizer,
        "has_optimizer": not without_optimizer,
        "has_random": not without_random,
        "scheduler": state.scheduler.state_dict(),
        **weights,
    }
    if not without_optimizer:
        with gathered_with_padding():
            optimizer = state.optimizer.sharded_state_dict(weights, is_loading=is_loading, metadata=_sharding())
        content["optimizer"] = optimizer
        content[adam_steps.SAVED] = adam_steps.steps_of(state.optimizer)
    if not without_random:
        content["random"] = _sharded_random_states()
    return content


def _sharded_weights(chunks: Sequence[torch.nn.Module]) -> dict[str, Any]:
    return {
        _chunk_key(index): chunk.sharded_state_dict(metadata=_sharding())  # type: ignore[operator]
        for index, chunk in enumerate(chunks)
    }


def _sharding() -> dict[str, Any]:
    """Of the optimizer's shardings this is the one that loads under every layout."""
    return {
        "distrib_optim_sharding_type": "fully_reshardable",
        "dp_cp_group": parallel_state.get_data_parallel_group(with_context_parallel=True),
    }


def _chunk_key(index: int) -> str:
    return f"model{index}"


def _layout_key(layout: Layout) -> str:
    return f"tp{layout.tensor}-pp{layout.pipeline}-cp{layout.context}-ep{layout.expert}-dp{layout.data}"


def _sharded_random_states() -> ShardedObject:
    """Every rank's own generators."""
    rank, world = dist.get_rank(), dist.get_world_size()
    return ShardedObject("random", random_states.read(), (world,), (rank,), replica_id=0)
