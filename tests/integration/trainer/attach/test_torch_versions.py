"""Versions of torch and of Python: what docs/attach.md's table says of each.

    MEGATRONAPP_TRAINING_PYTHONS=/envs/one/bin/python:/envs/other/bin/python pytest -m exhaustive …

names interpreters of training environments that have torch and numpy; of several gigabytes each, no test makes them.
"""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from megatronapp.core.trace import file as trace_file
from tests.integration.trainer.plugins.scan.traced import RankTrace, read
from tests.support.attached import SCRIPTS, every_step, run

VARIABLE = "MEGATRONAPP_TRAINING_PYTHONS"
PYTHONS = list(filter(None, os.environ.get(VARIABLE, "").split(os.pathsep)))
VERSIONS = "import sys, torch; print(*sys.version_info[:2], torch.__version__)"
STEPS = 4
pytestmark = [
    pytest.mark.long,
    pytest.mark.exhaustive,
    pytest.mark.timeout(900),
    pytest.mark.skipif(not PYTHONS, reason=f"{VARIABLE} names no training environment"),
]


@pytest.mark.parametrize("python", PYTHONS)
@pytest.mark.parametrize("script", ["ddp", "fsdp2"])
def test_a_loop_is_seen_and_computes_what_it_did_before(tmp_path: Path, python: str, script: str) -> None:
    print(subprocess.run([python, "-c", VERSIONS], capture_output=True, text=True, check=True).stdout)
    plain = run(SCRIPTS / f"{script}.py", STEPS, python=python, timeout=400)

    attached = run(SCRIPTS / f"{script}.py", STEPS, python=python, attach=every_step(tmp_path), timeout=400)

    assert attached.code == plain.code == 0, attached.output
    assert attached.lines("loss") == plain.lines("loss") != []
    assert sum("steps and collectives" in line for line in attached.said) == 1, attached.said
    assert not [line for line in attached.said if "not seen" in line or "not attached" in line]
    for rank in range(2):
        check(read(trace_file.path_for(tmp_path, f"local/{script}", 1, rank)), script)


def check(trace: RankTrace, script: str) -> None:
    assert [summary.step for summary in trace.summaries] == list(range(1, STEPS + 1))
    microbatches = [0] if script == "ddp" else [0, 1]
    for name in ("forward", "backward"):
        assert [span.microbatch for span in trace.of(name, step=3)] == microbatches
    assert len(trace.of("grad_sync", step=3)) == len(microbatches)
    assert len(trace.of("optimizer", step=3)) == 1
    assert len(trace.of("reduce_scatter", step=3)) == (0 if script == "ddp" else 8)
    assert len(trace.of("data", step=3)) == (1 if script == "ddp" else 0)
