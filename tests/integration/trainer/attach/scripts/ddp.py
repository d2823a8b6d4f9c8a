"""A DDP loop as people write them. Rank 0 prints each loss, exactly, and which heavy modules it has imported."""

from __future__ import annotations

import sys

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler

HEAVY = ("grpc", "google.protobuf", "pydantic", "structlog", "megatron.")


def main(steps: int) -> None:
    dist.init_process_group("gloo")
    torch.manual_seed(1)
    width = 384
    model = DistributedDataParallel(torch.nn.Sequential(*[torch.nn.Linear(width, width) for _ in range(8)]))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    samples = 16 * dist.get_world_size() * steps
    data = TensorDataset(torch.randn(samples, width), torch.randn(samples, width))
    for x, y in DataLoader(data, batch_size=16, sampler=DistributedSampler(data, shuffle=False)):
        loss = torch.nn.functional.mse_loss(model(x), y)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        if dist.get_rank() == 0:
            print("loss", loss.item().hex(), flush=True)
    if dist.get_rank() == 0:
        print("heavy", sorted(name for name in sys.modules if name.startswith(HEAVY)), flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main(int(sys.argv[1]))
    sys.exit(int(sys.argv[2]) if len(sys.argv) > 2 else 0)
