"""The V schedules of core/pipeline are those that torch has, and torch reads what is written here."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
from torch.distributed.pipelining import schedules

from megatronapp.core.pipeline import orders
from megatronapp.core.pipeline.placement import Layout, Placement
from megatronapp.core.pipeline.schedule_csv import read_csv, write_csv

TORCH = {"zbv": schedules.ScheduleZBVZeroBubble, "dualpipev": schedules.ScheduleDualPipeV}


@pytest.mark.parametrize("name", TORCH)
@pytest.mark.parametrize("stages", range(2, 8))
@pytest.mark.parametrize("more", [0, 1, 7])
def test_a_v_schedule_is_torchs(name: str, stages: int, more: int) -> None:
    layout = Layout(stages=stages, chunks=2, microbatches=2 * stages + more, split=True, placement=Placement.V)
    plan = SimpleNamespace(pp_group_size=stages, _n_microbatches=layout.microbatches, num_stages=layout.parts)
    of_torch = [TORCH[name]._calculate_single_rank_operations(plan, stage) for stage in range(stages)]
    text = "\n".join(",".join("" if action is None else str(action) for action in row) for row in of_torch)

    assert read_csv(text) == (layout, orders.all_stages(name, layout))


@pytest.mark.parametrize("name", ["interleaved", "zb-h1"])
def test_torch_reads_what_is_written(name: str) -> None:
    layout = Layout(stages=4, chunks=2 if name == "interleaved" else 1, microbatches=8, split=name == "zb-h1")
    text = write_csv(layout, orders.all_stages(name, layout))
    rows = [[schedules._Action.from_str(cell) for cell in line.split(",")] for line in text.splitlines()]
    written = sum(map(len, rows))

    compute = schedules._add_send_recv(dict(enumerate(rows)), lambda part: part % 4, layout.parts)

    assert sum(action is not None and action.is_compute_op for row in compute.values() for action in row) == written
