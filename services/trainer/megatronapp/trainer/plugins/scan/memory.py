"""The rank's memory on its GPU, as PyTorch's allocator counts it."""

from __future__ import annotations

import math

import torch

READ_EVERY_NS = 1_000_000_000
"""Reading takes some tenths of a millisecond, and heartbeats tell it once a second."""


class MemoryGauge:
    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._read_at_ns = -math.inf
        self._total = torch.cuda.get_device_properties(device).total_memory

    def poll(self, now_ns: int, after_ns: int = READ_EVERY_NS) -> tuple[int, int, int, int] | None:
        """Bytes that tensors hold, that the allocator has reserved, that tensors held at most since the last reading,
        and that the device has. None: the last reading is younger than `after_ns`."""
        if now_ns - self._read_at_ns < after_ns:
            return None
        self._read_at_ns = now_ns
        stats = torch.cuda.memory_stats_as_nested_dict(self._device)
        torch.cuda.reset_peak_memory_stats(self._device)
        allocated = stats["allocated_bytes"]["all"]
        return allocated["current"], stats["reserved_bytes"]["all"]["current"], allocated["peak"], self._total
