"""Which lanes this machine has, and how fast they are."""

from __future__ import annotations

from collections.abc import Iterator

import torch

from megatronapp.rdma import _native
from megatronapp.rdma.capabilities import rdma_devices, why_missing
from megatronapp.rdma.config import LANES, LaneName
from megatronapp.rdma.measure import speed

PURPOSE: dict[LaneName, str] = {
    "shm": "CPU tensors on one host",
    "cuda_ipc": "GPU tensors on one host",
    "ucx": "between hosts, over RDMA",
    "tcp": "between hosts",
}


def checks() -> Iterator[tuple[str, bool | None, str]]:
    """For `megatronapp doctor`: (name, there or optional, in words)."""
    for lane in LANES:
        missing = why_missing(lane)
        detail = f"missing for {PURPOSE[lane]}: {missing}" if missing else f"{PURPOSE[lane]}{_more(lane)}"
        yield f"lane {lane}", None if missing else True, detail


def report(*, measure: bool) -> str:
    """A line a lane, with its speed between two processes of this host."""
    lines = []
    for (name, there, detail), lane in zip(checks(), LANES, strict=True):
        sign = "ok" if there else "- "
        lines.append(f"{sign}  {name:14} {detail}")
        if there and measure and not (lane == "cuda_ipc" and torch.cuda.device_count() < 2):
            measured = speed(lane)
            lines.append(
                f"{'':20}{measured.bytes_per_second / 1e9:.1f} GB/s one way, "
                f"{measured.half_round_trip_seconds * 1e6:.0f} µs for 4 KiB"
            )
    return "\n".join(lines)


def _more(lane: LaneName) -> str:
    if lane == "ucx":
        devices = ", ".join(rdma_devices()) or "none: it would go over TCP, and is taken only when required"
        return f"; UCX {_native.ucx_version()}, RDMA devices: {devices}"
    if lane == "cuda_ipc":
        return f"; {torch.cuda.device_count()} x {torch.cuda.get_device_name(0)}"
    return ""
