"""An FSDP2 loop as people write them: two microbatches a step, and now and then a look at the model without
gradients."""

from __future__ import annotations

import sys

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard


def main(steps: int, width: int) -> None:
    dist.init_process_group("gloo")
    torch.manual_seed(1)
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    model = torch.nn.Sequential(*[torch.nn.Linear(width, width) for _ in range(4)])
    for layer in model:
        fully_shard(layer, mesh=mesh)
    fully_shard(model, mesh=mesh)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    torch.manual_seed(dist.get_rank())
    for step in range(steps):
        for _ in range(2):
            x = torch.randn(8, width)
            loss = torch.nn.functional.mse_loss(model(x), x.roll(1))
            loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        if dist.get_rank() == 0:
            print("loss", loss.item().hex(), flush=True)
        if step % 10 == 0:
            with torch.no_grad():
                model(x)
    dist.barrier()


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]) if len(sys.argv) > 2 else 64)
    dist.destroy_process_group()  # after what uses it is gone: gloo aborts a process at its end otherwise
