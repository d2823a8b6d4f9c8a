"""Somebody's training: DDP, with checkpoints of its own. On the node SLOW_NODE it computes everything thrice from a
step on."""

from __future__ import annotations

import argparse
import os
from pathlib import Path

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel


class Layers(torch.nn.Sequential):
    more = 0
    """Passes for nothing, in each forward pass: what a slow device is like."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        with torch.no_grad():
            for _ in range(self.more):
                super().forward(x)
        return super().forward(x)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, required=True)
    parser.add_argument("--save-interval", type=int, required=True)
    parser.add_argument("--load", type=Path, required=True)
    parser.add_argument("--save", type=Path, required=True)
    parser.add_argument("--slow-from", type=int, required=True)
    flags = parser.parse_args()
    dist.init_process_group("gloo")
    torch.manual_seed(1)
    width = 384
    model = Layers(*[torch.nn.Linear(width, width) for _ in range(8)])
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    first = load(flags.load / "last.pt", model, optimizer)
    slow = os.environ["NODE"] == os.environ["SLOW_NODE"]
    # Else DDP lays its buckets anew after the first step of each process, and a resumed one adds up in another order.
    replica = DistributedDataParallel(model, find_unused_parameters=True)
    for step in range(first, flags.steps + 1):
        torch.manual_seed(1000 * step + dist.get_rank())
        x, y = torch.randn(64, width), torch.randn(64, width)
        model.more = 6 if slow and step >= flags.slow_from else 0
        loss = torch.nn.functional.mse_loss(replica(x), y)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        if dist.get_rank() == 0:
            print("step", step, "loss", loss.item().hex(), flush=True)
            if step % flags.save_interval == 0:
                save(flags.save / "last.pt", step, model, optimizer)
    dist.destroy_process_group()


def load(file: Path, model: torch.nn.Module, optimizer: torch.optim.Optimizer) -> int:
    """The step to begin with."""
    if not file.exists():
        return 1
    saved = torch.load(file)
    model.load_state_dict(saved["model"])
    optimizer.load_state_dict(saved["optimizer"])
    return int(saved["step"]) + 1


def save(file: Path, step: int, model: torch.nn.Module, optimizer: torch.optim.Optimizer) -> None:
    unfinished = file.with_suffix(".unfinished")
    torch.save({"step": step, "model": model.state_dict(), "optimizer": optimizer.state_dict()}, unfinished)
    unfinished.replace(file)


if __name__ == "__main__":
    main()
