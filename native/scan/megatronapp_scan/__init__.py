"""The native recorder of MegatronApp's scan plug-in. The plug-in uses it by itself when it is installed."""

from megatronapp_scan._native import COLUMNS, Recorder, Sealed, place_brackets

__all__ = ["COLUMNS", "Recorder", "Sealed", "place_brackets"]
