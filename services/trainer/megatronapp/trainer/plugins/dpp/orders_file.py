"""The order that a step ran in, of all stages, as a file that `--dpp-policy replay` and `simulate --schedule` read.

Each stage's first rank of the first replica keeps its newest order in the world's store, and the first stage's writes
them when training ends, if all are of one step.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from megatronapp.core.errors import UsageError
from megatronapp.core.logging import get_logger
from megatronapp.core.pipeline.operations import Operation
from megatronapp.core.pipeline.placement import Layout
from megatronapp.core.pipeline.schedule_csv import write_csv
from megatronapp.core.trace.values import Placement
from megatronapp.trainer.plugins.base import PluginContext

log = get_logger(__name__)


class OrdersFile:
    """On ranks that keep nothing all of it does nothing."""

    def __init__(self, file: Path, layout: Layout, context: PluginContext) -> None:
        self._file, self._layout = file, layout
        self._stage = context.placement.pipeline
        self._store = context.store if _is_first(context.placement) else None

    def keep(self, step: int, order: Sequence[Operation]) -> None:
        if self._store is not None:
            numbers = " ".join(str(self._layout.number(operation)) for operation in order)
            self._store.set(_key(self._stage), f"{step} {numbers}")

    def write(self) -> None:
        """Raises OSError."""
        keys = [_key(stage) for stage in range(self._layout.stages)]
        if self._store is None or self._stage != 0 or not self._store.check(keys):
            return
        rows = [[int(number) for number in self._store.get(each).split()] for each in keys]
        if len({row[0] for row in rows}) > 1:
            log.warning("dpp_order_not_written", hint="the stages did not end in the same step")
            return
        self._file.write_text(write_csv(self._layout, [[*map(self._layout.operation, row[1:])] for row in rows]))
        log.info("dpp_order_written", file=str(self._file), step=rows[0][0])


def refuse_unwritable(file: Path) -> None:
    """Before training, or it would be known at its end. Raises UsageError."""
    if file.is_dir() or not file.parent.is_dir():
        raise UsageError(f"--dpp-order {file} can't be written: name a file in a folder that is there")


def _key(stage: int) -> str:
    return f"dpp/order/{stage}"


def _is_first(placement: Placement) -> bool:
    return placement.tensor == placement.context == placement.data == 0
