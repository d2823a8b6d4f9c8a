"""MegaFBD: forward passes on some ranks, backward passes on others (docs/fbd.md)."""

from megatronapp.trainer.plugins.fbd.plugin import FbdPlugin

__all__ = ["FbdPlugin"]
