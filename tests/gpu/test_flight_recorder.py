"""PyTorch's own flight recorder answers by its pipe while the GPU is in an operation that does not end soon."""

from __future__ import annotations

import re
import subprocess
import sys

import pytest

from tests.gpu.devices import needs

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.timeout(180),
    needs(1),
]

RANK = """
import os, time
from megatronapp.trainer.plugins.scan import flight_recorder
os.environ.update(flight_recorder.variables({}))
import torch
import torch.distributed as dist
from megatronapp.trainer.agent.flight_recorder import FlightRecorder

store = dist.HashStore()
dist.init_process_group("nccl", store=store, rank=0, world_size=1)
value = torch.ones(64, device="cuda")
dist.all_reduce(value)
torch.cuda.synchronize()
recorder = FlightRecorder(os.getpid(), flight_recorder.document(os.environ, dist.get_rank()))
torch.cuda._sleep(20_000_000_000)
dist.all_reduce(value)
recorder.ask()
while recorder.asking:
    if text := recorder.poll():
        print(text)
    time.sleep(0.1)
flight_recorder.remove()
os._exit(0)
"""


def test_it_tells_of_the_operation_that_is_not_through_and_where_it_was_called() -> None:
    done = subprocess.run([sys.executable, "-c", RANK], capture_output=True, text=True, timeout=120, check=False)

    first, *frames = done.stdout.splitlines() or [done.stderr]
    assert re.match(r"all_reduce \d+ \[\[64\]\] of default_pg", first), done.stderr
    assert any("all_reduce" in frame for frame in frames)
