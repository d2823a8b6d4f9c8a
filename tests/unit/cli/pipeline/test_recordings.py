"""Recorded steps, from the trainer's trace folder and from MegaScan's files."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pytest

from megatronapp.cli.main import app
from megatronapp.cli.pipeline.recordings import read_recording, usual_tail_ns
from megatronapp.core.errors import DataError, UsageError
from megatronapp.core.pipeline import orders
from megatronapp.core.pipeline.operations import Kind
from megatronapp.core.pipeline.placement import Layout
from megatronapp.core.pipeline.simulator.links import Links, wire
from megatronapp.core.pipeline.simulator.run import Run, run, strict
from megatronapp.core.pipeline.simulator.times import Variation, equal_times
from megatronapp.core.trace import file
from megatronapp.core.trace.columns import fill_spans
from megatronapp.v1 import trace_pb2
from tests.support.typed import typed

RECORDED = Path(__file__).resolve().parents[4] / "../shared/data/megatronapp_profiling"
LAYOUT = Layout(stages=2, chunks=2, microbatches=4)
NAMES = ["forward", "backward", "optimizer"]
OPTIMIZER_NS = 3_000_000


def step(seed: int) -> Run:
    durations, _ = Variation(jitter_cv=0.2).draw(
        LAYOUT, equal_times(LAYOUT, 1e6, 1e6, 1e6), np.random.default_rng(seed)
    )
    schedule = strict("", LAYOUT, orders.all_stages("interleaved", LAYOUT))
    return run(LAYOUT, schedule, durations, wire(LAYOUT, Links(latency_ns=50_000, blocking=True)))


def write_trace_folder(
    folder: Path, steps: list[Run], *, job: str = "local/run", tensor: int = 1, recipe: Mapping[str, str] | None = None
) -> None:
    """Of ranks whose clocks count from different moments; each second tensor rank is 10 µs behind. Behind a step's last
    pass the optimizer takes OPTIMIZER_NS."""
    for rank in range(LAYOUT.stages * tensor):
        stage, late_ns = rank // tensor, 10_000 * (rank % tensor)
        path = file.path_for(folder, job, 1, rank)
        path.parent.mkdir(parents=True, exist_ok=True)
        hello = trace_pb2.TraceMessage()
        hello.hello.placement.pipeline, hello.hello.placement.tensor = stage, rank % tensor
        hello.hello.placement.host_unix_ns, hello.hello.placement.host_clock_ns = 10**18, 10**15 * (rank + 1)
        for name, value in (recipe or {}).items():
            hello.hello.recipe.settings.add(name=name, value=value)
        with path.open("wb") as written:
            file.write(written, hello)
            for number, done in enumerate(steps, 1):
                message = trace_pb2.TraceMessage()
                message.batch.step = number
                message.batch.names.extend(NAMES)
                operations = list(LAYOUT.all_operations())
                begin = 10**15 * (rank + 1) + number * 10**9 + late_ns
                end = begin + int((done.begins + done.durations).max())
                fill_spans(
                    message.batch,
                    {
                        "start_ns": [begin + int(each) for each in done.begins[stage]] + [end],
                        "duration_ns": [int(each) for each in done.durations[stage]] + [OPTIMIZER_NS],
                        "name": [int(each.kind) for each in operations] + [2],
                        "microbatch": [each.microbatch for each in operations] + [-1],
                        "chunk": [each.chunk for each in operations] + [-1],
                    },
                )
                file.write(written, message)


def test_a_trace_folder_gives_its_whole_steps_without_the_first(tmp_path: Path) -> None:
    steps = [step(seed) for seed in range(4)]
    write_trace_folder(tmp_path, steps)

    recorded = read_recording(tmp_path)

    assert recorded.layout == LAYOUT
    assert len(recorded) == 3
    for number in range(3):
        assert (recorded.begins[number] == steps[number + 1].begins).all()
        assert (recorded.durations[number] == steps[number + 1].durations).all()
    assert recorded.usual_message_ns() == 50_000


def test_what_follows_the_last_pass_is_the_optimizers(tmp_path: Path) -> None:
    write_trace_folder(tmp_path / "run", [step(seed) for seed in range(4)])
    write_trace_folder(tmp_path / "none", [])

    assert usual_tail_ns(tmp_path / "run") == OPTIMIZER_NS
    assert usual_tail_ns(tmp_path / "none") == 0


def test_tensor_ranks_run_a_pass_together(tmp_path: Path) -> None:
    steps = [step(seed) for seed in range(2)]
    write_trace_folder(tmp_path, steps, tensor=2)

    recorded = read_recording(tmp_path)

    assert (recorded.durations[0] == steps[1].durations + 10_000).all()


def test_a_recording_is_predicted_and_other_schedules_are_simulated_on_its_times(tmp_path: Path) -> None:
    write_trace_folder(tmp_path, [step(seed) for seed in range(4)])

    replayed = json.loads(typed(app, f"simulate --trace {tmp_path} --json"))
    other = json.loads(typed(app, f"simulate --trace {tmp_path} --hint interleaved --json"))
    made = json.loads(typed(app, f"plan --trace {tmp_path} --json"))

    assert replayed["steps"] == 3
    assert abs(replayed["worst_error_ratio"]) < 1e-4
    assert other["layout"]["split"]
    assert other["step_ms"] == pytest.approx(replayed["measured_ms"], rel=0.2)
    assert made["stages"] == 2


@pytest.mark.parametrize(
    ("arguments", "said"),
    [("--stages 4", "the recording has 2 stages"), ("--chunks 4 --hint interleaved", "2 chunks a stage")],
)
def test_a_layout_that_is_not_the_recordings_is_refused(tmp_path: Path, arguments: str, said: str) -> None:
    write_trace_folder(tmp_path, [step(0)])

    with pytest.raises(UsageError, match=said):
        typed(app, f"simulate --trace {tmp_path} {arguments}")


def test_several_jobs_and_no_steps_are_told(tmp_path: Path) -> None:
    write_trace_folder(tmp_path / "two", [step(0)], job="local/one")
    write_trace_folder(tmp_path / "two", [step(0)], job="local/other")
    write_trace_folder(tmp_path / "none", [])

    with pytest.raises(UsageError, match="holds 2 jobs; name the folder of one"):
        read_recording(tmp_path / "two")
    with pytest.raises(DataError, match="holds no forward and backward spans"):
        read_recording(tmp_path / "none")


@pytest.mark.skipif(not RECORDED.is_dir(), reason="../shared/data is absent: MegatronApp's recorded runs")
@pytest.mark.parametrize(("name", "within"), [("pp", 0.01), ("dpp", 0.05)])
def test_recorded_runs_of_megatronapp_are_predicted(name: str, within: float) -> None:
    answer = json.loads(
        typed(app, f"simulate --json --trace {RECORDED}/data-1-pipeline-4-tensor-1-{name}-aggregated.json")
    )

    assert answer["layout"] | {"split": False} == {
        "stages": 4, "chunks": 4, "microbatches": 8, "split": False, "placement": "loop",
    }  # fmt: skip
    assert answer["steps"] == 19
    assert abs(answer["error_ratio"]) < within


def test_a_recording_knows_forward_from_backward(tmp_path: Path) -> None:
    write_trace_folder(tmp_path, [step(0), step(1)])

    times = read_recording(tmp_path).pass_times(0.5)

    assert times[Kind.BACKWARD] == pytest.approx(times[Kind.WGRAD])
    assert times[Kind.FORWARD].mean() < (times[Kind.BACKWARD] + times[Kind.WGRAD]).mean()


def test_whether_forward_devices_pay_is_planned_with_recorded_times(tmp_path: Path) -> None:
    write_trace_folder(tmp_path, [step(seed) for seed in range(3)])

    sizes = "--layers 8 --hidden-size 1024 --seq-length 128 --forward-devices 1 --forward-memory-gib 1"
    answer = json.loads(typed(app, f"plan --trace {tmp_path} {sizes} --json"))

    recorded = read_recording(tmp_path).pass_times(0.35).sum(axis=(0, 2)).max() / 1e6
    assert answer["baseline"]["training"] == "no recompute"
    assert answer["baseline"]["step_ms"] > LAYOUT.microbatches * recorded
    assert answer["chosen"]["microbatch_ms"]["backward"] <= recorded
