"""A loop on Accelerate, two microbatches a step. Rank 0 prints each loss, exactly."""

from __future__ import annotations

import sys

import torch
from accelerate import Accelerator
from torch.utils.data import DataLoader, TensorDataset

STEPS, WIDTH, BATCH = map(int, sys.argv[1:] or (4, 32, 4))
ACCUMULATED = 2

accelerator = Accelerator(cpu=True, gradient_accumulation_steps=ACCUMULATED)
torch.manual_seed(1)
model = torch.nn.Linear(WIDTH, WIDTH)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
samples = STEPS * ACCUMULATED * BATCH * accelerator.num_processes
x, y = torch.randn(samples, WIDTH), torch.randn(samples, WIDTH)
loader = DataLoader(TensorDataset(x, y), batch_size=BATCH)
model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
for x, y in loader:
    with accelerator.accumulate(model):
        loss = torch.nn.functional.mse_loss(model(x), y)
        accelerator.backward(loss)
        optimizer.step()
        optimizer.zero_grad()
    if accelerator.is_main_process:
        print("loss", loss.item().hex(), flush=True)
