"""MegatronApp's profiler plug-in for NCCL. The trainer uses it under --nccl-trace."""

from megatronapp.nccl.library import LIBRARY, Level, ask_for, open_segment, supported_level

__all__ = ["LIBRARY", "Level", "ask_for", "open_segment", "supported_level"]
