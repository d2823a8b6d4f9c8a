"""An environment with torch, in which nothing of ours is installed and what our services need has other versions."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from megatronapp.core.trace import file as trace_file
from tests.integration.trainer.plugins.scan.traced import read
from tests.support import training_environment
from tests.support.attached import SCRIPTS, every_step, run

STEPS = 4
PINNED = {"protobuf": "4.25.8", "pydantic": "1.10.22", "grpcio": "1.60.2"}
INSTALLED = """
from importlib.metadata import distributions
for found in distributions():
    print(found.name, found.version)
"""


@pytest.mark.long
@pytest.mark.timeout(600)
def test_it_is_attached_to_trains_the_same_and_imports_none_of_them(tmp_path: Path) -> None:
    pins = [f"{name}=={version}" for name, version in PINNED.items()]
    python = training_environment.make(tmp_path / "environment", *pins)
    listed = subprocess.run([python, "-c", INSTALLED], capture_output=True, text=True, check=True).stdout
    installed = dict(line.split() for line in listed.splitlines())
    plain = run(SCRIPTS / "ddp.py", STEPS, python=python)

    attached = run(SCRIPTS / "ddp.py", STEPS, python=python, attach=every_step(tmp_path))

    assert PINNED.items() <= installed.items()
    assert not [name for name in installed if name.startswith("megatron") or name == "structlog"]
    assert attached.code == plain.code == 0, attached.output
    assert attached.lines("loss") == plain.lines("loss") != []
    assert attached.lines("heavy") == ["heavy []"]
    [line] = attached.said
    assert "steps and collectives" in line
    for rank in range(2):
        trace = read(trace_file.path_for(tmp_path, "local/ddp", 1, rank))
        assert [summary.step for summary in trace.summaries] == list(range(1, STEPS + 1))
