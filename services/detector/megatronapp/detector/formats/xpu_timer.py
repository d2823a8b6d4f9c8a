"""Scrapes of xpu_timer (DLRover): Prometheus text with a hang flag for each rank."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from prometheus_client.parser import text_string_to_metric_families

from megatronapp.core.errors import DataError

PREFIX = "XPU_TIMER_"
HANG = "XPU_TIMER_COMMON_HANG"
LOOKED_AT_BYTES = 1 << 16


def is_scrape(path: Path) -> bool:
    """Whether the file's beginning names any of xpu_timer's metrics."""
    with path.open("rb") as file:
        return PREFIX.encode() in file.read(LOOKED_AT_BYTES)


@dataclass(frozen=True, slots=True)
class Scrape:
    hung: Mapping[int, bool]
    """Whether each rank hangs, by global rank."""
    samples: int
    """Of all metrics."""


def read(path: Path) -> Scrape:
    """Raises DataError."""
    try:
        families = list(text_string_to_metric_families(path.read_text()))
        samples = [sample for family in families for sample in family.samples]
        hung = {int(sample.labels["rank"]): sample.value != 0 for sample in samples if sample.name == HANG}
        return Scrape(hung, len(samples))
    except (ValueError, KeyError) as error:
        raise DataError(f"{path}: not readable as Prometheus text with a hang flag per rank: {error}") from error
