"""MegaDPP: pipeline stages choose their next operation while they run (pipeline/dynamic.py)."""

from megatronapp.trainer.plugins.dpp.plugin import DppPlugin

__all__ = ["DppPlugin"]
