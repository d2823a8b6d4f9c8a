"""Process groups, random seeds and this rank's place in the grid."""

from __future__ import annotations

import os
import random
from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import torch
import torch.distributed as dist
from megatron.core import parallel_state, tensor_parallel
from torch._C._distributed_c10d import HashStore, PrefixStore, Store
from torch.distributed.rendezvous import rendezvous

from megatronapp.core.errors import MegatronAppError, TrainingError, UsageError
from megatronapp.core.logging import get_logger
from megatronapp.core.trace.values import ParallelSizes, Placement
from megatronapp.trainer.config import ParallelConfig
from megatronapp.trainer.environment import Environment
from megatronapp.trainer.layout import Layout
from megatronapp.trainer.placement import placement as process_placement
from megatronapp.trainer.worlds import World

DEVICE_FILE = Path("/dev/nvidia0")
log = get_logger(__name__)
T = TypeVar("T")


def start(environment: Environment, config: ParallelConfig, layout: Layout, world: World) -> tuple[torch.device, Store]:
    """Join the world and build megatron-core's groups. Returns this rank's device and the job's key-value store."""
    device = _device(environment)
    timeout = timedelta(minutes=config.distributed_timeout_minutes)
    store = _store(environment, timeout)
    own = world.store(store)
    _agree(world, layout, own)
    dist.init_process_group(
        config.distributed_backend or ("nccl" if device.type == "cuda" else "gloo"),
        store=PrefixStore("world", own),
        rank=world.rank,
        world_size=world.size,
        timeout=timeout,
        device_id=device if device.type == "cuda" else None,
    )
    parallel_state.initialize_model_parallel(
        layout.tensor,
        layout.pipeline,
        layout.virtual,
        context_parallel_size=layout.context,
        expert_model_parallel_size=layout.expert,
        distributed_timeout_minutes=config.distributed_timeout_minutes,
    )
    return device, PrefixStore("trainer", store)


def _agree(world: World, layout: Layout, store: Store) -> None:
    """Ranks that lay out the world differently would wait for each other for ever. Raises TrainingError."""
    if world.rank == 0:
        store.set("layout", repr(layout))
    elif (first := store.get("layout").decode()) != repr(layout):
        rank, other = world.ranks[world.rank], world.ranks[0]
        raise TrainingError(f"rank {rank} trains with {layout}, but rank {other} with {first}: see its plug-ins")


def on_first_rank(action: Callable[[], T]) -> T:
    """What `action` returns on rank 0, on every rank. Its error is raised on every rank, so that none waits."""
    outcome: list[Any] = [None, None]
    if dist.get_rank() == 0:
        try:
            outcome[0] = action()
        except (MegatronAppError, OSError) as error:
            outcome[1] = error
    dist.broadcast_object_list(outcome, src=0)
    if outcome[1] is not None:
        raise outcome[1]
    result: T = outcome[0]
    return result


def stop() -> None:
    """Leave the world, after a run that ended well on all ranks: together, as one of them may hold the store, which
    others still look into behind the last step."""
    dist.barrier()
    parallel_state.destroy_model_parallel()
    dist.destroy_process_group()


def _device(environment: Environment) -> torch.device:
    if not torch.cuda.is_available():
        if torch.version.cuda is None and DEVICE_FILE.exists() and environment.rank == 0:
            log.warning("gpus_unused", hint="this PyTorch is built for CPUs: install one for CUDA (image trainer-cuda)")
        return torch.device("cpu")
    if environment.local_rank >= torch.cuda.device_count():
        raise UsageError(
            f"local rank {environment.local_rank} has no GPU: the host shows {torch.cuda.device_count()}; "
            "start no more ranks per host than it has GPUs"
        )
    torch.cuda.set_device(environment.local_rank)
    return torch.device("cuda", environment.local_rank)


def _store(environment: Environment, timeout: timedelta) -> Store:
    """torchrun's store; of a single process without torchrun, one that needs no network."""
    if environment.launched:
        store, _, _ = next(iter(rendezvous("env://", timeout=timeout)))
        return store
    if environment.world_size > 1:
        raise UsageError("WORLD_SIZE is set but RANK and MASTER_ADDR are not; start several ranks with torchrun")
    return HashStore()


def seed_everything(seed: int) -> None:
    """Seeds as in Megatron-LM: different dropout on each pipeline stage and tensor rank, equal over data ranks."""
    stage_seed = seed + 100 * parallel_state.get_pipeline_model_parallel_rank()
    random.seed(stage_seed)
    np.random.seed(stage_seed % 2**32)
    torch.manual_seed(stage_seed)
    tensor_parallel.model_parallel_cuda_manual_seed(stage_seed)


def be_deterministic() -> None:
    """Only algorithms that repeat bit by bit. Call before the first CUDA kernel and the first NCCL communicator."""
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    os.environ.setdefault("NCCL_ALGO", "Ring")
    os.environ.setdefault("NVTE_ALLOW_NONDETERMINISTIC_ALGO", "0")
    torch.use_deterministic_algorithms(True)
    torch.utils.deterministic.fill_uninitialized_memory = False  # type: ignore[attr-defined]


def placement(environment: Environment, sizes: ParallelSizes, device: torch.device, role: str = "") -> Placement:
    """Where this rank runs, its place in the grid of its world, and its role."""
    return replace(
        process_placement(environment, device, role),
        tensor=parallel_state.get_tensor_model_parallel_rank(),
        pipeline=parallel_state.get_pipeline_model_parallel_rank(),
        data=parallel_state.get_data_parallel_rank(),
        context=parallel_state.get_context_parallel_rank(),
        expert=parallel_state.get_expert_model_parallel_rank(),
        sizes=sizes,
    )
