"""`megatronapp attach` on a loop on Accelerate."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from megatronapp.core.trace import file as trace_file
from tests.integration.trainer.plugins.scan.traced import read
from tests.support import accelerate
from tests.support.attached import SCRIPTS, every_step, run


@pytest.fixture
def environment(tmp_path: Path) -> dict[str, str]:
    return accelerate.install(tmp_path / "packages")


@pytest.mark.long
@pytest.mark.timeout(600)
@pytest.mark.parametrize("launcher", [(), accelerate.LAUNCH], ids=["torchrun", "accelerate launch"])
def test_a_step_is_what_the_optimizer_takes_and_accumulation_is_microbatches(
    tmp_path: Path, environment: dict[str, str], launcher: Sequence[str]
) -> None:
    script = SCRIPTS / "accelerate_loop.py"
    plain = run(script, environment=environment, launcher=launcher)

    attached = run(script, environment=environment, launcher=launcher, attach=every_step(tmp_path))

    assert plain.code == 0, plain.output
    assert attached.code == 0, attached.output
    assert attached.lines("loss") == plain.lines("loss")
    assert len(plain.lines("loss")) == 8
    [line] = attached.said
    assert "steps and collectives" in line
    for rank in range(2):
        trace = read(trace_file.path_for(tmp_path, "local/accelerate-loop", 1, rank))
        assert [summary.step for summary in trace.summaries] == [1, 2, 3, 4]
        assert [span.microbatch for span in trace.of("forward", step=2)] == [0, 1]
        assert len(trace.of("optimizer", step=2)) == 1
