"""`megatronapp attach` on loops that know nothing of megatron-core."""

from __future__ import annotations

from pathlib import Path

import pytest

from megatronapp.core.trace import file as trace_file
from megatronapp.v1 import trace_pb2
from tests.integration.trainer.plugins.scan.traced import RankTrace, read
from tests.support import training_packages
from tests.support.attached import SCRIPTS, every_step, run

STEPS = 6


def traces(folder: Path, job: str, ranks: int = 2) -> list[RankTrace]:
    return [read(trace_file.path_for(folder, job, 1, rank)) for rank in range(ranks)]


@pytest.mark.long
@pytest.mark.timeout(400)
def test_a_ddp_loop_is_seen_step_by_step_and_computes_and_imports_what_it_did_before(tmp_path: Path) -> None:
    plain = run(SCRIPTS / "ddp.py", STEPS, 7)

    attached = run(SCRIPTS / "ddp.py", STEPS, 7, attach=every_step(tmp_path))

    assert len(plain.lines("loss")) == STEPS
    assert attached.lines("loss", "heavy") == plain.lines("loss", "heavy")
    assert attached.code == plain.code == 1, attached.output
    [line] = attached.said
    assert "attached to local/ddp" in line
    assert "not what megatron-core's schedules would tell" in line
    for trace in traces(tmp_path, "local/ddp"):
        assert [summary.step for summary in trace.summaries] == list(range(1, STEPS + 1))
        assert trace.hello.attached == trace_pb2.ATTACHED_PROGRAM
        last = trace.heartbeats[-1]
        assert (last.closing, last.phase) == (True, trace_pb2.PHASE_PAUSE)
        names = [span.name for span in trace.spans if span.step == 3]
        assert all(names.count(name) == 1 for name in ("data", "forward", "backward", "optimizer"))


@pytest.mark.long
@pytest.mark.timeout(400)
def test_an_fsdp2_loop_has_its_microbatches_collectives_and_evaluations(tmp_path: Path) -> None:
    plain = run(SCRIPTS / "fsdp2.py", STEPS)

    attached = run(SCRIPTS / "fsdp2.py", STEPS, attach=every_step(tmp_path))

    assert attached.lines("loss") == plain.lines("loss")
    assert attached.code == plain.code == 0
    for trace in traces(tmp_path, "local/fsdp2"):
        assert [summary.step for summary in trace.summaries] == list(range(1, STEPS + 1))
        assert [s.microbatch for s in trace.of("forward", step=3)] == [0, 1]
        assert [s.microbatch for s in trace.of("backward", step=3)] == [0, 1]
        assert {s.communicator for s in trace.of("all_gather", "reduce_scatter", step=3)} != {""}
        assert len(trace.of("reduce_scatter", step=3)) == 8


@pytest.mark.long
@pytest.mark.timeout(400)
def test_a_loop_like_torchtitans_has_its_data_passes_and_one_optimizer_a_step(tmp_path: Path) -> None:
    environment = training_packages.install(tmp_path / "packages", "torchdata==0.11.0")
    plain = run(SCRIPTS / "torchtitan_loop.py", STEPS, environment=environment)

    attached = run(SCRIPTS / "torchtitan_loop.py", STEPS, environment=environment, attach=every_step(tmp_path))

    assert len(plain.lines("loss")) == STEPS
    assert attached.lines("loss") == plain.lines("loss")
    assert attached.code == plain.code == 0, attached.output
    for trace in traces(tmp_path, "local/torchtitan-loop"):
        assert [summary.step for summary in trace.summaries] == list(range(1, STEPS + 1))
        assert len(trace.of("data", step=3)) == 2
        assert [s.microbatch for s in trace.of("forward", step=3)] == [0, 1]
        assert [s.microbatch for s in trace.of("backward", step=3)] == [0, 1]
        assert len(trace.of("optimizer", step=3)) == 1


@pytest.mark.long
@pytest.mark.timeout(400)
def test_a_program_without_an_optimizer_shows_collectives_alone(tmp_path: Path) -> None:
    plain = run(SCRIPTS / "collectives.py")

    attached = run(SCRIPTS / "collectives.py", attach=every_step(tmp_path))

    assert attached.lines("total") == plain.lines("total") == ["total 256.0"]
    assert attached.code == plain.code == 0, attached.output
    [line] = attached.said
    assert "collectives alone" in line
    for trace in traces(tmp_path, "local/collectives"):
        assert trace.hello.attached == trace_pb2.ATTACHED_PROGRAM
        assert list(trace.summaries) == []
