"""Who this process is, and where it runs: of any rank, whatever it trains with."""

from __future__ import annotations

import os
import platform
import secrets
import time

import torch
from torch._C._distributed_c10d import Store

from megatronapp.core.trace.values import Identity, ParallelSizes, Placement
from megatronapp.trainer.environment import Environment


def identity(environment: Environment, store: Store) -> Identity:
    """Who this process is. A run without a name gets a random one, the same on all ranks."""
    if environment.rank == 0:
        store.set("run", environment.run or secrets.token_hex(8))
    return Identity(
        run=store.get("run").decode(),
        job=environment.job,
        attempt=environment.attempt,
        rank=environment.rank,
        incarnation=secrets.randbits(64),
    )


def placement(environment: Environment, device: torch.device, role: str = "") -> Placement:
    """Where this rank runs. Its place in the grid is that of plain data parallelism, each rank a replica."""
    on_gpu = device.type == "cuda"
    uuid = f"GPU-{torch.cuda.get_device_properties(device).uuid}" if on_gpu else ""
    return Placement(
        node=environment.node,
        gpu_uuid=uuid,
        data=environment.rank,
        sizes=ParallelSizes(world=environment.world_size, data=environment.world_size),
        host_unix_ns=time.time_ns(),
        host_clock_ns=time.monotonic_ns(),
        local_rank=environment.local_rank,
        pid=os.getpid(),
        device_id=uuid or f"cpu:{environment.node}/{environment.local_rank}",
        device_name=torch.cuda.get_device_name(device) if on_gpu else platform.machine(),
        role=role,
    )
