"""A program with process groups and no optimizer."""

from __future__ import annotations

import torch
import torch.distributed as dist

dist.init_process_group("gloo")
total = torch.ones(1)
for _ in range(8):
    dist.all_reduce(total)
if dist.get_rank() == 0:
    print("total", total.item(), flush=True)
dist.destroy_process_group()
