"""Tables of MegaScan's recordings."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from megatronapp.core.trace.megascan import read_megascan
from megatronapp.detector.formats.megascan import step_tables


def half(name: str, phase: str, at_us: int, **attributes: Any) -> dict[str, Any]:
    place = {"dp_rk": 0, "pp_rk": 0, "tp_rk": 0, "dev": 0, "g_rk": 0}
    return {"name": name, "ph": phase, "rel_ts": at_us, **place, **attributes}


def test_microbatches_are_as_many_as_were_recorded_whatever_their_numbers(tmp_path: Path) -> None:
    passes = [
        half("forward", phase, 10 * number + at, micro_batch_index=index)
        for number, index in enumerate([0, 1_000_000])
        for at, phase in enumerate("BE")
    ]
    rows = [half("iteration", "B", 0, pad_before=0), *passes, half("iteration", "E", 100, duration_wall=100)]
    (tmp_path / "benchmark-data-0-pipeline-0-tensor-0.json").write_text(json.dumps(rows))

    (table,) = step_tables(read_megascan(tmp_path))

    assert table.microbatches == 2
