"""`with attach(...) as run: … run.step()`: two lines in a loop, with the command and without."""

from __future__ import annotations

from pathlib import Path

import pytest

from megatronapp.core.trace import file as trace_file
from tests.integration.trainer.plugins.scan.traced import read
from tests.support.attached import SCRIPTS, every_step, run

STEPS = 8


@pytest.mark.long
@pytest.mark.timeout(300)
@pytest.mark.parametrize("by_command", [False, True])
def test_steps_are_those_that_the_loop_says(tmp_path: Path, by_command: bool) -> None:
    command = ["--job", "team/own", *every_step(tmp_path)] if by_command else None

    ended = run(SCRIPTS / "own_steps.py", STEPS, tmp_path, attach=command)

    assert ended.code == 0, ended.output
    assert len(ended.said) == 1, ended.said
    for rank in range(2):
        trace = read(trace_file.path_for(tmp_path, "team/own", 1, rank))
        assert [s.step for s in trace.summaries] == list(range(1, STEPS + 1))
        losses = [s.progress.loss for s in trace.summaries if s.progress is not None]
        assert losses == [float(step) for step in range(1, STEPS + 1)]
