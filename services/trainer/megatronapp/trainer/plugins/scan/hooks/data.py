"""data: the wait for a microbatch, and the work it carries."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from megatronapp.trainer.plugins.scan.hooks.probe import Probe, Work
from megatronapp.trainer.plugins.scan.operations import Operation


class TracedData:
    """The iterator of one model chunk's microbatches. The forward span around a wait begins when the data is there."""

    def __init__(self, probe: Probe, iterator: Iterator[dict[str, Any]]) -> None:
        self._probe = probe
        self._iterator = iterator

    def __iter__(self) -> TracedData:
        return self

    def __getattr__(self, name: str) -> Any:
        return getattr(self._iterator, name)

    def __next__(self) -> dict[str, Any]:
        probe = self._probe
        if not probe.on:
            return next(self._iterator)
        recorder = probe.recorder
        recorder.begin(Operation.DATA)
        work = (0, 0)
        try:
            batch = next(self._iterator)
            work = probe.works[probe.microbatch] = work_of(batch)
        finally:
            recorder.end_work(*work)
        if recorder.innermost()[0] == Operation.FORWARD:
            recorder.restart()
        return batch


def work_of(batch: Any) -> Work:
    """(tokens, sum of squared sequence lengths): what the batch says of itself under "work", or, without that, that of
    one sequence per row. tokens, or input_ids: [batch, sequence]; (0, 0) for a batch that has neither."""
    if not isinstance(batch, Mapping):
        return 0, 0
    if "work" in batch:
        tokens, length_squares = batch["work"]
        return int(tokens), int(length_squares)
    shape: Any = getattr(batch.get("tokens", batch.get("input_ids")), "shape", ())
    if len(shape) != 2:
        return 0, 0
    rows, length = shape
    return rows * length, rows * length * length
