"""Accelerate's names for what data-parallel ranks do together."""

from __future__ import annotations

from megatronapp.trainer.engine import averaged_over_data_ranks as avg_losses_across_data_parallel_group
from megatronapp.trainer.engine import gather_across_data_parallel_groups

__all__ = ["avg_losses_across_data_parallel_group", "gather_across_data_parallel_groups"]
