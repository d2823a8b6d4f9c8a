"""Every collective and message of NCCL, recorded for the rank's agent (docs/nccl.md)."""

from megatronapp.trainer.plugins.megatrace.plugin import MegatracePlugin

__all__ = ["MegatracePlugin"]
