"""A loop as torchtitan's trainer has it: FSDP2, all of a step's microbatches read before the first pass, their tokens
counted over all ranks, and a loader that keeps its state. Rank 0 prints each loss, exactly."""

from __future__ import annotations

import sys

import torch
import torch.distributed as dist
from torch.distributed._functional_collectives import all_reduce
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torchdata.stateful_dataloader import StatefulDataLoader

ACCUMULATED, BATCH, WIDTH = 2, 4, 64


class Optimizers(torch.optim.Optimizer):
    """Of all parts of a model, stepped as one."""

    def __init__(self, parts: list[torch.nn.Module]) -> None:
        self._each = [torch.optim.AdamW(part.parameters(), lr=1e-3) for part in parts]
        super().__init__([parameter for part in parts for parameter in part.parameters()], {})

    def step(self, closure=None) -> None:
        for optimizer in self._each:
            optimizer.step()

    def zero_grad(self, set_to_none: bool = True) -> None:
        for optimizer in self._each:
            optimizer.zero_grad(set_to_none=set_to_none)


def main(steps: int) -> None:
    dist.init_process_group("gloo")
    torch.manual_seed(1)
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    model = torch.nn.Sequential(*[torch.nn.Linear(WIDTH, WIDTH) for _ in range(4)])
    for layer in model:
        fully_shard(layer, mesh=mesh)
    fully_shard(model, mesh=mesh)
    optimizers = Optimizers([model])
    schedulers = [torch.optim.lr_scheduler.LambdaLR(each, lambda _: 1.0) for each in optimizers._each]
    samples = torch.randn(steps * ACCUMULATED * BATCH, WIDTH)
    data = iter(StatefulDataLoader(samples, batch_size=BATCH))
    for _ in range(steps):
        optimizers.zero_grad()
        microbatches = [next(data) for _ in range(ACCUMULATED)]
        tokens = all_reduce(torch.tensor(float(sum(map(len, microbatches)))), "sum", mesh)
        for x in microbatches:
            loss = (model(x) - x.roll(1)).square().sum() / tokens
            loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0, foreach=True)
        optimizers.step()
        for scheduler in schedulers:
            scheduler.step()
        if dist.get_rank() == 0:
            print("loss", loss.item().hex(), flush=True)
    dist.barrier()


if __name__ == "__main__":
    main(int(sys.argv[1]))
    dist.destroy_process_group()  # after what uses it is gone: gloo aborts a process at its end otherwise
