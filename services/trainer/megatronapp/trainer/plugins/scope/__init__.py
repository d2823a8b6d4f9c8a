"""MegaScope in the rank: look into the model while it trains, disturb it, pause it (docs/scope.md).

Its flags are read where there is no torch, too: the plug-in is loaded when it is asked for.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from megatronapp.trainer.plugins.scope.plugin import ScopePlugin

__all__ = ["ScopePlugin"]


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(name)
    from megatronapp.trainer.plugins.scope.plugin import ScopePlugin

    return ScopePlugin
