"""Faults on purpose: real slowness and real hangs, for demos and tests. See docs/faults.md."""

from megatronapp.trainer.plugins.faults.plugin import FaultsPlugin

__all__ = ["FaultsPlugin"]
