"""The rank's memory on its GPU, as PyTorch's allocator counts it."""

from __future__ import annotations

import torch


class MemoryGauge:
    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._total = torch.cuda.get_device_properties(device).total_memory

    def read(self) -> tuple[int, int, int, int]:
        """Bytes that tensors hold, that the allocator has reserved, that tensors held at most since the last reading,
        and that the device has."""
        stats = torch.cuda.memory_stats_as_nested_dict(self._device)
        torch.cuda.reset_peak_memory_stats(self._device)
        allocated = stats["allocated_bytes"]["all"]
        return allocated["current"], stats["reserved_bytes"]["all"]["current"], allocated["peak"], self._total
