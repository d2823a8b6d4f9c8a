"""MegaScan: which GPU, link or host is slow or hung, since when and why. See docs/tracing.md.

Its flags are read where there is no torch, too: the plug-in is loaded when it is asked for.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from megatronapp.trainer.plugins.scan.plugin import ScanPlugin

__all__ = ["ScanPlugin"]


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(name)
    from megatronapp.trainer.plugins.scan.plugin import ScanPlugin

    return ScanPlugin
