"""The native recorder of MegatronApp's scan plug-in. The plug-in uses it by itself when it is installed."""

from megatronapp.scan._native import COLUMNS, Recorder, place_brackets
from megatronapp.scan.measure import mark_cost_ns, resolving_cost_ns

__all__ = ["COLUMNS", "Recorder", "mark_cost_ns", "place_brackets", "resolving_cost_ns"]
