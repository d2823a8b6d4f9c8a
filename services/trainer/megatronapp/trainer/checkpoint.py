"""Checkpoints: written whole or not at all, read back under any layout.

    <folder>/latest_checkpointed_iteration.txt   the newest complete step, replaced atomically
    <folder>/claim.json                          which attempt may write here
    <folder>/iter_0000100/                       one checkpoint in megatron-core's distributed format
    <folder>/iter_0000100/recipe.json            flags, tokenizer and versions of the run (recipe.py)
    <folder>/iter_0000100/tokenizer/             the tokenizer's files, where it has any
    <folder>/iter_0000100/complete.json          the size of each file, written last

A checkpoint is written into a folder of another name and renamed when every rank has written and synced its part.
"""

from __future__ import annotations

import json
import os
import re
import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from queue import SimpleQueue
from typing import Any

import torch
import torch.distributed as dist
from megatron.core import dist_checkpointing, parallel_state
from megatron.core.dist_checkpointing.core import CheckpointingException
from megatron.core.dist_checkpointing.mapping import ShardedObject
from megatron.core.dist_checkpointing.strategies import filesystem_async
from megatron.core.distributed import DistributedDataParallel
from megatron.core.optimizer_param_scheduler import OptimizerParamScheduler
from megatron.core.utils import unwrap_model
from torch.distributed.checkpoint.api import CheckpointException

from megatronapp.core.errors import (
    DataError,
    MegatronAppError,
    NotFoundError,
    TrainingError,
    UnavailableError,
    UsageError,
)
from megatronapp.core.json_file import load_json_file
from megatronapp.core.logging import get_logger
from megatronapp.trainer import random_states
from megatronapp.trainer.config import CheckpointConfig, Effect
from megatronapp.trainer.layout import Layout
from megatronapp.trainer.optimizer import unshare_steps
from megatronapp.trainer.parallel import on_first_rank
from megatronapp.trainer.recipe import RunRecipe, listed

log = get_logger(__name__)

LATEST = "latest_checkpointed_iteration.txt"
CLAIM = "claim.json"
RECIPE = "recipe.json"
TOKENIZER = "tokenizer"
COMPLETE = "complete.json"
Write = Callable[..., Any]
_FOLDER = re.compile(r"^iter_(\d{7,})$")


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


# ---- finding


def find_latest(folder: Path) -> int | None:
    """The step of the newest complete checkpoint; None in a folder without any.

    A torn checkpoint (files missing or cut short) is passed over with a warning. Raises DataError when there are
    checkpoints but none is complete.
    """
    tracker = folder / LATEST
    if not tracker.exists():
        return None
    text = tracker.read_text(errors="replace").strip()
    steps = sorted(_steps_in(folder), reverse=True)
    if text.isdigit():
        steps = [step for step in steps if step <= int(text)]
    else:
        log.warning("checkpoint_tracker_unreadable", file=str(tracker), content=text[:40])
    for step in steps:
        reason = _torn(folder / folder_name(step))
        if reason is None:
            return step
        log.warning("checkpoint_torn", folder=str(folder / folder_name(step)), reason=reason)
    raise DataError(f"{folder} has no complete checkpoint; give another --load, or an empty folder to start anew")


def folder_name(step: int) -> str:
    return f"iter_{step:07d}"


def _steps_in(folder: Path) -> list[int]:
    names = (_FOLDER.match(path.name) for path in folder.iterdir())
    return [int(name[1]) for name in names if name]


def _torn(checkpoint: Path) -> str | None:
    """Why this checkpoint can't be used, or None."""
    try:
        sizes: dict[str, int] = dict(load_json_file(checkpoint / COMPLETE)["files"])
    except (MegatronAppError, LookupError, TypeError, ValueError):
        return f"{COMPLETE} is missing or unreadable"
    try:
        for name, size in sizes.items():
            file = checkpoint / name
            if not file.exists():
                return f"{name} is missing"
            if file.stat().st_size != size:
                return f"{name} has {file.stat().st_size} bytes instead of {size}"
    except (OSError, ValueError) as error:  # a name that no file can have
        return f"{COMPLETE} names a file that can't be read: {error}"
    return None


# ---- one writer


@dataclass(frozen=True)
class Claim:
    """The right to write: held by the newest attempt of the run that started last."""

    folder: Path
    run: str
    attempt: int

    def take(self) -> None:
        """Raises TrainingError when a newer attempt of the same run holds the folder. Call on one rank."""
        self.folder.mkdir(parents=True, exist_ok=True)
        holder = self._holder()
        if holder is not None and holder["run"] == self.run and holder["attempt"] > self.attempt:
            raise TrainingError(self._refusal(holder))
        _replace(self.folder / CLAIM, json.dumps({"run": self.run, "attempt": self.attempt}))

    def check(self) -> None:
        """Raises TrainingError when somebody else has claimed the folder since."""
        holder = self._holder()
        if holder != {"run": self.run, "attempt": self.attempt}:
            raise TrainingError(self._refusal(holder))

    def _holder(self) -> dict[str, Any] | None:
        path = self.folder / CLAIM
        if not path.exists():
            return None
        try:
            holder = load_json_file(path)
            return {"run": str(holder["run"]), "attempt": int(holder["attempt"])}
        except (DataError, LookupError, TypeError, ValueError, ArithmeticError) as error:
            raise DataError(f"{path} is unreadable; remove it if no run writes there") from error

    def _refusal(self, holder: dict[str, Any] | None) -> str:
        now = f"attempt {holder['attempt']} of run {holder['run']}" if holder else "nobody"
        return (
            f"attempt {self.attempt} of run {self.run} must not write checkpoints to {self.folder}: {now} holds it "
            "now; this process is stale and ends"
        )


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
    partial = claim.folder / f".{final.name}.partial"
    on_first_rank(lambda: _prepare(claim, partial))
    content = _sharded_state(state, config.no_save_optim, config.no_save_rng, is_loading=False)
    try:
        # By default the writers' results come through a process of its own, for saves that go on beside training. It
        # imports torch, which takes each rank seconds; who waits for its writers needs no such process.
        filesystem_async._results_queue = SimpleQueue()
        request = dist_checkpointing.save(content, str(partial), async_sharded_save=True)
        write = traced(request.async_fn) if request.async_fn is not None else None
        request._replace(async_fn=write).execute_sync()
    except (OSError, CheckpointException) as error:
        raise UnavailableError(
            f"the checkpoint of step {state.step} could not be written to {claim.folder} (the ones before it are "
            f"whole): {error}; make room there or give another --save"
        ) from error
    on_first_rank(lambda: _publish(claim, partial, final, state))
    return final


def _prepare(claim: Claim, partial: Path) -> None:
    claim.check()
    shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir(parents=True)


def _publish(claim: Claim, partial: Path, final: Path, state: TrainingState) -> None:
    _replace(partial / RECIPE, state.recipe.to_json())
    for name, content in state.tokenizer_files.items():
        (partial / TOKENIZER).mkdir(exist_ok=True)
        _replace(partial / TOKENIZER / name, content)
    files = {str(p.relative_to(partial)): p.stat().st_size for p in sorted(partial.rglob("*")) if p.is_file()}
    _replace(partial / COMPLETE, json.dumps({"step": state.step, "attempt": claim.attempt, "files": files}, indent=1))
    claim.check()
    shutil.rmtree(final, ignore_errors=True)
    partial.rename(final)
    _sync_folder(claim.folder)
    _replace(claim.folder / LATEST, str(state.step))


def _replace(path: Path, content: str | bytes) -> None:
    """Write a small file so that a reader finds the old content or the new, also after a power loss."""
    fresh = path.with_name(f".{path.name}.new")
    with fresh.open("wb") as file:
        file.write(content.encode() if isinstance(content, str) else content)
        file.flush()
        os.fsync(file.fileno())
    fresh.replace(path)
    _sync_folder(path.parent)


def _sync_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


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


def read_recipe(checkpoint: Path) -> RunRecipe:
    """Raises DataError where it is missing or can't be read."""
    file = checkpoint / RECIPE
    try:
        return RunRecipe.from_json(file.read_text())
    except FileNotFoundError as error:
        raise DataError(f"{checkpoint} has no {RECIPE}: it was not written by this version of the trainer") from error
    except (DataError, UnicodeDecodeError) as error:
        raise DataError(f"{file}: {error}") from error


def find_complete(folder: Path) -> Path:
    """The checkpoint that `folder` is, or else the newest complete one in it. Raises NotFoundError and DataError."""
    if not folder.is_dir():
        raise NotFoundError(f"{folder}: there is no such folder")
    if _FOLDER.match(folder.name) and not (folder / LATEST).exists():
        if (reason := _torn(folder)) is not None:
            raise DataError(f"{folder} is no complete checkpoint: {reason}")
        return folder
    step = find_latest(folder)
    if step is None:
        raise NotFoundError(f"{folder} holds no checkpoint of the trainer")
    return folder / folder_name(step)


def load_weights(chunks: Sequence[torch.nn.Module], checkpoint: Path) -> None:
    """Only the weights, into the model's chunks of any layout; every rank calls it. Raises DataError."""
    weights = _sharded_weights(chunks)
    try:
        loaded = dist_checkpointing.load(weights, str(checkpoint))
    except (CheckpointException, CheckpointingException, OSError) as error:
        raise DataError(f"the weights in {checkpoint} don't fit its recipe: {str(error)[:300]}") from error
    for index, chunk in enumerate(chunks):
        chunk.load_state_dict(loaded[_chunk_key(index)])


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
    weights_only = fresh and config.finetune
    without_optimizer = weights_only or (fresh and config.no_load_optim) or not common["has_optimizer"]
    without_random = weights_only or (fresh and config.no_load_rng) or not common["has_random"]
    if not without_optimizer and common["distributed_optimizer"] != state.distributed_optimizer:
        saved = "with" if common["distributed_optimizer"] else "without"
        raise DataError(
            f"{checkpoint} was saved {saved} --use-distributed-optimizer: start the same way, or give --no-load-optim"
        )
    if common["layout"] != _layout_key(state.layout):
        log.info("checkpoint_resharded", saved=common["layout"], now=_layout_key(state.layout))
        without_random = True
    loaded = dist_checkpointing.load(
        _sharded_state(state, without_optimizer, without_random, is_loading=True), str(checkpoint)
    )
    for index, chunk in enumerate(unwrap_model(state.chunks)):
        chunk.load_state_dict(loaded[_chunk_key(index)])
    if not without_optimizer:
        state.optimizer.load_state_dict(loaded["optimizer"])
        unshare_steps(state.optimizer)
    else:
        state.optimizer.reload_model_params()
    if not weights_only:
        state.scheduler.load_state_dict(loaded["scheduler"])
        state.step, state.consumed_samples = loaded["step"], loaded["consumed_samples"]
    if not without_random:
        random_states.restore(loaded["random"])


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
        content["optimizer"] = state.optimizer.sharded_state_dict(weights, is_loading=is_loading, metadata=_sharding())
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
