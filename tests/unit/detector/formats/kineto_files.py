"""Traces as PyTorch's profiler writes them: a host's operators and launches, and its device's kernels."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

MAIN, AUTOGRAD, STREAM, NCCL_STREAM = 100, 200, 7, 20
STEP_US = 1000.0


class TraceFile:
    """Times in microseconds."""

    def __init__(self, rank: int = 0, world: int = 1) -> None:
        self.events: list[dict[str, Any]] = []
        self.header: dict[str, Any] = {
            "schemaVersion": 1,
            "distributedInfo": {"backend": "nccl", "rank": rank, "world_size": world},
        }
        self._correlation = 0

    def add(self, cat: str, name: str, ts: float, dur: float, tid: int = MAIN, **args: Any) -> None:
        self.events.append(
            {"ph": "X", "cat": cat, "name": name, "pid": 1, "tid": tid, "ts": ts, "dur": dur, "args": args}
        )

    def step(self, number: int, ts: float, dur: float = STEP_US) -> None:
        self.add("user_annotation", f"ProfilerStep#{number}", ts, dur)

    def kernel(self, operator: str, kernel: str, launched: float, ts: float, dur: float, tid: int = MAIN) -> None:
        """An operator on the host that launches one kernel."""
        self._correlation += 1
        self.add("cpu_op", operator, launched, 4.0, tid)
        self.add("cuda_runtime", "cudaLaunchKernel", launched + 1.0, 2.0, tid, correlation=self._correlation)
        stream = NCCL_STREAM if kernel.startswith("nccl") else STREAM
        self.add("kernel", kernel, ts, dur, stream, correlation=self._correlation, stream=stream)

    def write(self, path: Path) -> Path:
        text = json.dumps(self.header | {"traceEvents": self.events}).encode()
        path.write_bytes(gzip.compress(text) if path.suffix == ".gz" else text)
        return path


def training_step(file: TraceFile, number: int, ts: float, *, slower: float = 1.0, kernels: int = 1) -> None:
    """Forward, backward, an all-reduce that half of the backward pass hides, and the optimizer."""
    file.step(number, ts)
    for index in range(kernels):
        file.kernel("aten::mm", "gemm", ts + 5 + index, ts + 10, 200 * slower / kernels)
    file.add("cpu_op", "autograd::engine::evaluate_function: MmBackward0", ts + 20, 50, AUTOGRAD)
    file.kernel("aten::mm", "gemm", ts + 30, ts + 10 + 200 * slower, 300 * slower, AUTOGRAD)
    ends = ts + 10 + 500 * slower
    file.kernel("c10d::allreduce_", "ncclDevKernel_AllReduce_Sum_f32_RING_LL", ts + 60, ends - 100, 200)
    file.add("user_annotation", "Optimizer.step#Adam.step", ts + 80, 20)
    file.kernel("aten::_foreach_add_", "multi_tensor_apply", ts + 85, ends + 100, 50 * slower)
