"""What `plan --from-run` takes of a recorded run."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from megatronapp.cli.main import app
from megatronapp.cli.pipeline.recorded_run import FromRun, completed
from megatronapp.core.errors import DataError, UsageError
from megatronapp.core.trace import file
from megatronapp.v1 import trace_pb2
from tests.support.typed import typed
from tests.unit.cli.pipeline.test_recordings import OPTIMIZER_NS, step, write_trace_folder

ASKED = FromRun(forward_devices=1)
RUN = {
    "num-layers": "8", "hidden-size": "1024", "ffn-hidden-size": "2816", "num-attention-heads": "16", "swiglu": "on",
    "group-query-attention": "on", "num-query-groups": "4", "seq-length": "512", "micro-batch-size": "2",
    "tensor-model-parallel-size": "2", "sequence-parallel": "on", "use-distributed-optimizer": "on",
}  # fmt: skip


def recorded(folder: Path, settings: dict[str, str], *, data: int = 2) -> Path:
    path = file.path_for(folder, "local/run", 1, 0)
    path.parent.mkdir(parents=True)
    message = trace_pb2.TraceMessage()
    message.hello.placement.sizes.data = data
    for name, value in settings.items():
        message.hello.recipe.settings.add(name=name, value=value)
    with path.open("wb") as written:
        file.write(written, message)
    return folder


def test_the_model_and_the_sizes_are_the_runs(tmp_path: Path) -> None:
    found = completed(replace(ASKED, from_run=recorded(tmp_path, RUN)))

    assert found.trace == tmp_path
    assert (found.layers, found.hidden_size, found.ffn_hidden_size) == (8, 1024, 2816)
    assert (found.num_query_groups, found.qkv_width) == (4, 64 * (16 + 8))
    assert (found.tensor, found.replicas, found.micro_batch_size) == (2, 2, 2)
    assert (found.swiglu, found.sequence_parallel, found.parameter_bytes) == (True, True, 12.0)


def test_an_mlp_is_gated_by_gelu_too(tmp_path: Path) -> None:
    run = {name: value for name, value in RUN.items() if name != "swiglu"} | {"geglu": "on"}

    assert completed(replace(ASKED, from_run=recorded(tmp_path, run))).swiglu


def test_what_is_given_counts_more(tmp_path: Path) -> None:
    given = replace(ASKED, from_run=recorded(tmp_path, RUN), layers=16, replicas=4, swiglu=True)

    found = completed(given)

    assert (found.layers, found.replicas, found.tensor) == (16, 4, 2)


def test_without_forward_devices_it_gives_times_alone(tmp_path: Path) -> None:
    folder = recorded(tmp_path, {})

    found = completed(FromRun(from_run=folder))

    assert found.trace == folder
    assert found.layers is None


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"recompute-granularity": "full"}, "recomputed its activations"),
        ({"num-experts": "8"}, "without experts"),
        ({"model-type": "bert"}, "trained another model"),
    ],
)
def test_a_run_that_can_not_be_planned_with_is_refused(tmp_path: Path, settings: dict[str, str], said: str) -> None:
    folder = recorded(tmp_path, RUN | settings)

    with pytest.raises(UsageError, match=said):
        completed(replace(ASKED, from_run=folder))


def test_a_recording_without_a_recipe_is_refused(tmp_path: Path) -> None:
    folder = recorded(tmp_path, {})

    with pytest.raises(DataError, match="name the folder of one, or use --trace"):
        completed(replace(ASKED, from_run=folder))


def test_times_come_from_one_place(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="leave --trace out"):
        completed(replace(ASKED, from_run=tmp_path, trace=tmp_path))


def test_whether_forward_devices_pay_beside_the_run_is_said_of_its_times_and_its_optimizer(tmp_path: Path) -> None:
    steps = [step(seed) for seed in range(4)]
    run = {name: value for name, value in RUN.items() if not name.startswith("tensor")}
    write_trace_folder(tmp_path, steps, recipe=run)
    asked = f"plan --from-run {tmp_path} --forward-devices 2 --forward-speed 0.5 --json"

    answer, without = (json.loads(typed(app, f"{asked} {more}")) for more in ("", "--optimizer-ms 1e-9"))

    (backward_ms,) = {each["microbatch_ms"]["backward"] for each in answer["tried"] if each["mode"] == "input"}
    assert backward_ms == pytest.approx(3.0, rel=0.15)  # forward again, dgrad and wgrad
    tail_ms = answer["baseline"]["step_ms"] - without["baseline"]["step_ms"]
    assert tail_ms == pytest.approx(OPTIMIZER_NS / 1e6, rel=1e-3)
