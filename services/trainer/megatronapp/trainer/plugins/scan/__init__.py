"""MegaScan: which GPU, link or host is slow or hung, since when and why. See docs/tracing.md."""

from megatronapp.trainer.plugins.scan.plugin import ScanPlugin

__all__ = ["ScanPlugin"]
