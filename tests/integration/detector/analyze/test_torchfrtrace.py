"""PyTorch's own reader of flight recorders beside ours. It tells who is missing in which collective, not who waits for
whom: the first mismatch that it finds is a rank that we name; those behind it follow from that."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from megatronapp.detector.analyze import analyze

MISSING = re.compile(r"collective: (?!nccl:(?:send|recv) )\S+\s*\nmissing ranks: \{([\d, ]+)\}")
"""Of collectives: of messages it takes all stages for members."""


@pytest.mark.parametrize("scenario", ["gpu_error_1st", "lock_gil_2nd"])
def test_who_is_missing_first_by_pytorchs_reader_is_named(shared_data: Path, scenario: str) -> None:
    dumps = shared_data / "nvrx_flight_recorder" / "fr_traces" / scenario
    reader = [sys.executable, "-m", "torch.distributed.flight_recorder.fr_trace", str(dumps), "-p", "_dump_"]

    read = subprocess.run(reader, capture_output=True, text=True, check=False, timeout=120)
    missing = [set(map(int, found.split(","))) for found in MISSING.findall(read.stdout + read.stderr)]
    named = {rank for finding in analyze(dumps).findings for rank in finding.ranks}

    assert missing
    assert missing[0] <= named
