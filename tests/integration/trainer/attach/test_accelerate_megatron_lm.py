"""`megatronapp attach` on a loop on Accelerate's Megatron-LM plug-in: it calls Megatron-LM's step, not its loop."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from megatronapp.core.trace import file as trace_file
from tests.integration.trainer.plugins.scan.traced import RankTrace, read
from tests.support import accelerate
from tests.support.attached import SCRIPTS, every_step, run

ROOT = Path(__file__).parents[4]
ON_CPU = Path(__file__).parent / "accelerate_on_cpu.py"
STEPS, MICROBATCHES = [1, 2, 3, 4], [0, 1]


@pytest.fixture
def environment(tmp_path: Path, shared_data: Path) -> dict[str, str]:
    installed = accelerate.install(tmp_path / "packages")["PYTHONPATH"]
    found = os.pathsep.join([installed, str(shared_data / "megatron_lm"), str(ROOT)])
    return {"PYTHONPATH": found, "CUDA_DEVICE_MAX_CONNECTIONS": "1"}


@pytest.mark.long
@pytest.mark.timeout(600)
def test_every_step_and_microbatch_is_seen_and_the_losses_are_the_same(
    tmp_path: Path, environment: dict[str, str]
) -> None:
    script = SCRIPTS / "accelerate_megatron_lm.py"
    plain = run(ON_CPU, script, environment=environment)
    assert plain.code == 0, f"the script alone died with exit code {plain.code}: {plain.output}"

    attach = ["--job", "team/gpt", *every_step(tmp_path)]
    attached = run(ON_CPU, script, environment=environment, attach=attach)

    assert attached.code == 0, attached.output
    assert attached.lines("loss") == plain.lines("loss")
    assert len(plain.lines("loss")) == len(STEPS) + 1
    [line] = attached.said
    assert "full: microbatches, messages between stages" in line
    for rank in range(2):
        check(read(trace_file.path_for(tmp_path, "team/gpt", 1, rank)))


def check(trace: RankTrace) -> None:
    assert [summary.step for summary in trace.summaries] == STEPS
    assert all(summary.progress.grad_norm > 0 for summary in trace.summaries)
    for step in STEPS:
        assert [span.microbatch for span in trace.of("forward", step=step)] == MICROBATCHES
        assert [span.microbatch for span in trace.of("backward", step=step)] == MICROBATCHES
        assert len(trace.of("forward_send", "forward_recv", step=step)) == len(MICROBATCHES)
        assert len(trace.of("optimizer", step=step)) == 1
