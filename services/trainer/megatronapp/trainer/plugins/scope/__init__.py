"""MegaScope in the rank: look into the model while it trains, disturb it, pause it (docs/scope.md)."""

from megatronapp.trainer.plugins.scope.plugin import ScopePlugin

__all__ = ["ScopePlugin"]
