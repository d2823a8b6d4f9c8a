"""Plug-ins: what attaches to a stock megatron-core training run, and how."""

from megatronapp.trainer.plugins.base import Plugin, PluginContext, TimerHub, TimerListener, discover

__all__ = ["Plugin", "PluginContext", "TimerHub", "TimerListener", "discover"]
