"""The bytes of a timeline that the page's tests read are those that the gateway writes.

`python -m tests.contract.test_page_frames` writes them anew.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from megatronapp.gateway import columns
from megatronapp.gateway.collector import grid_columns
from megatronapp.v1 import trace_pb2

FOLDER = Path(__file__).resolve().parents[2] / "services/ui/test/data"
NAMES = {"grid-steps.bin": 1, "grid-buckets.bin": 4}
CELLS = ("offset", "duration", "shortest", "longest", "compute", "most_compute", "wait", "host")


def recorded(bucket_steps: int) -> bytes:
    """Two buckets of three ranks; the last rank has told nothing of the second."""
    values = np.array([0.25, 0.5, 0.75, 1.0, 1.25, np.nan], "<f4")
    answer = trace_pb2.ListStepGridResponse(
        oldest_step=1,
        newest_step=2 * bucket_steps,
        first_step=bucket_steps,
        bucket_steps=bucket_steps,
        ranks=np.arange(3, dtype="<u4").tobytes(),
        start_ns=np.array([10**18, 10**18 + 10**9], "<i8").tobytes(),
        end_ns=np.array([10**18 + 10**9, 10**18 + 2 * 10**9], "<i8").tobytes(),
        traced=b"\x01\x00",
        **{f"{name}_seconds": (values * (number + 1)).tobytes() for number, name in enumerate(CELLS)},
    )
    return columns.encode(*grid_columns(answer))


@pytest.mark.parametrize(("name", "bucket_steps"), NAMES.items())
def test_the_recorded_bytes_are_what_the_gateway_writes(name: str, bucket_steps: int) -> None:
    assert (FOLDER / name).read_bytes() == recorded(bucket_steps)


if __name__ == "__main__":
    for file, steps in NAMES.items():
        (FOLDER / file).write_bytes(recorded(steps))
