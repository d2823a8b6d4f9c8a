"""`megatronapp attach` on a plain loop on megatron-core."""

from __future__ import annotations

from pathlib import Path

import pytest

from megatronapp.core.trace import file as trace_file
from tests.integration.trainer.plugins.scan.traced import read
from tests.support.attached import SCRIPTS, every_step, run

STEPS, STAGES = 4, 2


@pytest.mark.long
@pytest.mark.timeout(400)
def test_its_schedule_is_seen_whole_and_computes_what_it_did_before(tmp_path: Path) -> None:
    plain = run(SCRIPTS / "megatron_core_loop.py", STEPS, STAGES)

    attached = run(SCRIPTS / "megatron_core_loop.py", STEPS, STAGES, attach=every_step(tmp_path))

    assert attached.code == plain.code == 0, attached.output
    assert len(plain.lines("loss")) == STEPS
    assert attached.lines("loss") == plain.lines("loss")
    [line] = attached.said
    assert "messages between stages" in line
    for rank in range(STAGES):
        trace = read(trace_file.path_for(tmp_path, "local/megatron-core-loop", 1, rank))
        assert [summary.step for summary in trace.summaries] == list(range(1, STEPS + 1))
        assert [span.microbatch for span in trace.of("forward", step=3)] == [0, 1, 2, 3]
        assert {span.tokens for span in trace.of("data", step=3)} == {32}
        assert len(trace.of("forward_send", "forward_recv", step=3)) == 4
        assert len({span.layer for span in trace.of("layer_backward", step=3)}) == 4  # of each stage
        assert len(trace.of("optimizer", step=3)) == 1


@pytest.mark.long
@pytest.mark.timeout(400)
def test_the_model_tells_that_gradients_are_reduced_beside_the_passes(tmp_path: Path) -> None:
    """The detector leaves a step's longest backward pass out then. Megatron-LM's flags, which say so, are not there."""
    attached = run(SCRIPTS / "megatron_core_loop.py", STEPS, 1, "overlap", attach=every_step(tmp_path))

    assert attached.code == 0, attached.output
    for rank in range(2):
        trace = read(trace_file.path_for(tmp_path, "local/megatron-core-loop", 1, rank))
        assert ("overlap-grad-reduce", "on") in {(each.name, each.value) for each in trace.hello.recipe.settings}
        assert len(trace.summaries) == STEPS


@pytest.mark.long
@pytest.mark.timeout(400)
def test_a_loop_that_brings_its_communicator_keeps_it_and_is_told_what_is_not_seen(tmp_path: Path) -> None:
    """As Megatron-Bridge's does."""
    plain = run(SCRIPTS / "megatron_core_loop.py", STEPS, STAGES, "bridge")

    attached = run(SCRIPTS / "megatron_core_loop.py", STEPS, STAGES, "bridge", attach=every_step(tmp_path))

    assert attached.code == plain.code == 0, attached.output
    assert attached.lines("loss") == plain.lines("loss") != []
    assert sum("messages between stages are not seen: the script brings" in line for line in attached.said) == 1
    for rank in range(STAGES):
        trace = read(trace_file.path_for(tmp_path, "local/megatron-core-loop", 1, rank))
        assert [summary.step for summary in trace.summaries] == list(range(1, STEPS + 1))
        assert [span.microbatch for span in trace.of("forward", step=3)] == [0, 1, 2, 3]
        assert not trace.of("forward_send", "forward_recv", step=3)
