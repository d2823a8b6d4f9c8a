"""`megatronapp attach` on Megatron-LM's own pretrain_gpt.py, of which no line is changed."""

from __future__ import annotations

from pathlib import Path

import pytest

from megatronapp.core.trace import file as trace_file
from megatronapp.v1 import trace_pb2
from tests.integration.trainer.plugins.scan.traced import RankTrace, read
from tests.support.attached import every_step
from tests.support.pretrain import logged, pretrain, same_bits, weights

STEPS, MICROBATCHES = 6, {"pipeline": 4, "tensor": 4, "data": 2}
SAVE_INTERVAL, LEARNING_RATE = 2, 1e-3


def traces(folder: Path) -> list[RankTrace]:
    return [read(trace_file.path_for(folder, "team/gpt", 1, rank)) for rank in range(2)]


@pytest.mark.long
@pytest.mark.parametrize("layout", ["pipeline", "tensor", "data"])
@pytest.mark.timeout(600)
def test_every_step_and_microbatch_is_seen_and_the_losses_are_the_same(
    shared_data: Path, tmp_path: Path, layout: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(shared_data / "megatron_lm")
    plain = pretrain(shared_data, tmp_path / "plain", layout, STEPS, save_interval=SAVE_INTERVAL)
    assert plain.code == 0, f"the script alone died with exit code {plain.code}: {plain.output}"

    attach = ["--job", "team/gpt", *every_step(tmp_path)]
    attached = pretrain(shared_data, tmp_path / "attached", layout, STEPS, save_interval=SAVE_INTERVAL, attach=attach)

    assert attached.code == 0, attached.output
    assert len(logged(plain)) == STEPS + 3  # an evaluation between two steps, and two at the end
    assert logged(attached) == logged(plain)
    assert len(weights(tmp_path / "plain")) > 20
    assert same_bits(weights(tmp_path / "attached"), weights(tmp_path / "plain"))
    [line] = attached.said
    assert "messages between stages" in line
    for trace in traces(tmp_path):
        check(trace, layout)
    check_progress(traces(tmp_path)[-1], logged(attached))


def check(trace: RankTrace, layout: str) -> None:
    assert trace.hello.attached == trace_pb2.ATTACHED_SCHEDULES
    assert {s.value for s in trace.hello.recipe.settings if s.name == "hidden-size"} == {"32"}
    assert [summary.step for summary in trace.summaries] == list(range(1, STEPS + 1))
    assert _after(trace, trace_pb2.PHASE_EVALUATION) == [5]
    assert _after(trace, trace_pb2.PHASE_CHECKPOINT) == [3, 5]
    microbatches = list(range(MICROBATCHES[layout]))
    for step in range(1, STEPS + 1):
        assert [span.microbatch for span in trace.of("forward", step=step)] == microbatches
        assert [span.microbatch for span in trace.of("backward", step=step)] == microbatches
        assert len(trace.of("optimizer", step=step)) == 1
        assert len({span.layer for span in trace.of("layer_forward", step=step)}) == (2 if layout == "pipeline" else 4)
    if layout == "pipeline":
        sent = trace.of("forward_send", "forward_recv", step=3)
        assert len(sent) == len(microbatches)


def _after(trace: RankTrace, phase: trace_pb2.Phase) -> list[int]:
    """The steps before which the run was in it."""
    return [summary.step for summary in trace.summaries if phase in summary.phases]


def check_progress(trace: RankTrace, lines: list[tuple[str, ...]]) -> None:
    """Megatron-LM's second line averages over the first two steps."""
    shown = {summary.step: f"{summary.progress.loss:.6E}" for summary in trace.summaries}
    norms = {summary.step: f"{summary.progress.grad_norm:.3f}" for summary in trace.summaries}
    said = {int(step): loss for step, loss, _, _ in lines if loss}
    assert norms == {int(step): norm for step, _, norm, _ in lines if norm}
    assert {summary.progress.learning_rate for summary in trace.summaries} == {LEARNING_RATE}
    assert all(summary.progress.tokens_per_second > 0 for summary in trace.summaries)
    assert shown.keys() == said.keys()
    assert {step: shown[step] for step in shown if step != 2} == {step: said[step] for step in said if step != 2}
