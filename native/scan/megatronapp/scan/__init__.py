"""The native recorder of MegatronApp's scan plug-in. The plug-in uses it by itself when it is installed."""

from megatronapp.scan._native import COLUMNS, Recorder, place_brackets

__all__ = ["COLUMNS", "Recorder", "place_brackets"]
