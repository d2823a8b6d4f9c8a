"""`megatronapp plan`, as it is typed."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from megatronapp.cli.main import app
from megatronapp.core.errors import UsageError
from megatronapp.core.pipeline.orders import all_stages
from megatronapp.core.pipeline.schedule_csv import read_csv
from tests.support.typed import typed

FOUR = "--stages 4 --microbatches 16 --forward-ms 10 --dgrad-ms 10 --wgrad-ms 10"


def test_it_says_what_to_run_and_what_it_gains() -> None:
    answer = json.loads(typed(app, f"plan {FOUR} --chunks 2 --json"))

    assert answer["gpus"] == 4
    assert answer["chosen"] in answer["tried"]
    assert answer["stock"] in answer["tried"]
    assert answer["gain_ratio"] == pytest.approx(answer["stock"]["step_ms"] / answer["chosen"]["step_ms"], abs=1e-4)
    assert answer["gain_ratio"] > 1.04

    text = typed(app, f"plan {FOUR} --chunks 2")
    assert "← chosen" in text
    assert f"run {answer['chosen']['schedule']}: {answer['gain_ratio']:.3f} times as fast as stock" in text


@pytest.mark.parametrize(
    ("asked", "flags"),
    [
        (
            "--chunks 2",
            "--num-virtual-stages-per-pipeline-rank 2 --use-dpp --dpp-policy replay --dpp-order FILE.csv "
            "(--csv FILE.csv writes it)",
        ),
        (
            "--chunks 2 --late-ratio 0.05 --late-ms 60",
            "--num-virtual-stages-per-pipeline-rank 2 --use-dpp --dpp-policy interleaved-zb --dpp-cap 11",
        ),
        ("--chunks 1 --late-ratio 0.05 --late-ms 60", "--use-dpp --dpp-policy interleaved-zb --dpp-cap 4"),
        (
            "--chunks 1 --late-ratio 0.05 --late-ms 60 --split-overhead 0.3",
            "--use-dpp --dpp-policy interleaved --dpp-cap 4 --dpp-no-split",
        ),
    ],
)
def test_it_says_with_which_flags_to_train(asked: str, flags: str) -> None:
    assert typed(app, f"plan {FOUR} {asked}").splitlines()[-1] == f"in training: {flags}"


def test_the_order_that_it_writes_is_the_one_that_it_has_chosen(tmp_path: Path) -> None:
    file = tmp_path / "order.csv"

    answer = json.loads(typed(app, f"plan {FOUR} --chunks 2 --json --csv {file}"))

    layout, found = read_csv(file.read_text())
    assert answer["trainer_flags"][-2:] == ["--dpp-order", str(file)]
    assert found == all_stages(answer["chosen"]["order"], layout)


def test_where_nothing_is_faster_it_says_to_run_stock() -> None:
    assert "run stock: nothing that fits is faster" in typed(app, f"plan {FOUR} --chunks 2 --split-overhead 0.5")


def test_several_numbers_of_chunks_are_compared() -> None:
    answer = json.loads(typed(app, f"plan {FOUR} --chunks 1,2 --tensor 8 --replicas 16 --json"))

    assert answer["gpus"] == 512
    assert {each["chunks"] for each in answer["tried"]} == {1, 2}


def test_ten_thousand_gpus_whose_operations_differ_are_planned_for() -> None:
    many = "--stages 8 --chunks 2 --microbatches 16 --tensor 8 --replicas 156 --jitter-cv 0.2 --draws 1"

    answer = json.loads(typed(app, f"plan {many} --json"))

    assert answer["gpus"] == 9_984
    assert answer["gain_ratio"] > 1


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (f"{FOUR} --chunks two", "--chunks two: write a number"),
        (f"{FOUR} --chunks 0", "at least one of its chunks"),
        (f"{FOUR} --chunks 1,2 --cap-limit 8", "name one number of --chunks with it"),
        (f"{FOUR} --chunks 2 --cap-limit 1", "nothing fits into 1 activations"),
        (f"{FOUR} --chunks 2 --cap-limit 0", "nothing fits into 0 activations"),
        (f"{FOUR} --csv /nowhere/order.csv", "/nowhere/order.csv can't be written"),
        (f"{FOUR} --csv order.csv --forward-devices 2", "leave --forward-devices out"),
        (f"{FOUR} --split-overhead 3", "--split-overhead is from 0 to 1"),
    ],
)
def test_bad_input_is_one_line_that_says_what_to_change(arguments: str, said: str) -> None:
    with pytest.raises(UsageError, match=said):
        typed(app, f"plan {arguments}")


BESIDE = (
    "--stages 4 --microbatches 32 --forward-ms 32 --dgrad-ms 32 --wgrad-ms 32 --forward-devices 2 "
    "--forward-memory-gib 24 --memory-gib 40 --layers 32 --hidden-size 4096 --seq-length 4096"
)


def test_it_says_whether_forward_devices_pay_and_how() -> None:
    answer = json.loads(typed(app, f"plan {BESIDE} --json"))

    chosen, baseline = answer["chosen"], answer["baseline"]
    assert answer["pays"]
    assert not answer["reason"]
    assert (chosen["mode"], baseline["training"]) == ("input", "full recompute")
    assert answer["gain_ratio"] == pytest.approx(baseline["step_ms"] / chosen["step_ms"], abs=1e-4)
    assert 1.2 < answer["gain_ratio"] <= chosen["bound_ratio"]
    assert chosen["forward_memory_gib"] <= 24
    assert chosen in answer["tried"]

    text = typed(app, f"plan {BESIDE}")
    assert "← best" in text
    assert f"MegaFBD pays: {answer['gain_ratio']:.2f} times as fast. Run --forward-backward-disaggregating" in text


def test_it_refuses_forward_devices_that_do_not_pay_with_the_reason() -> None:
    answer = json.loads(typed(app, f"plan {BESIDE} --forward-speed 0.01 --json"))

    assert not answer["pays"]
    assert "forward devices take" in answer["reason"]
    assert f"MegaFBD does not pay: {answer['reason']}" in typed(app, f"plan {BESIDE} --forward-speed 0.01")


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (f"{FOUR} --forward-devices 2", "add --layers, --hidden-size, --seq-length"),
        (f"{FOUR} --hidden-size 4", "--hidden-size does nothing without --forward-devices"),
        (f"{FOUR} --link-gbps 50", "--link-gbps does nothing without --forward-devices"),
        (f"{FOUR} --sequence-parallel", "--sequence-parallel does nothing without --forward-devices"),
        (f"{BESIDE} --link-ms nan", "its latency is 0 or a positive number"),
        (f"{BESIDE} --ffn-hidden-size 0", "a model's ffn can't be 0"),
        (f"{BESIDE} --num-query-groups 0", "a model's groups can't be 0"),
        (f"{BESIDE} --chunks 1,2", "name one number of --chunks"),
        (f"{BESIDE} --jitter-cv 0.2", "--jitter-cv has no meaning with --forward-devices"),
        (f"{BESIDE} --link-gbps 0", "memory and link are positive"),
    ],
)
def test_bad_input_about_forward_devices_is_one_line(arguments: str, said: str) -> None:
    with pytest.raises(UsageError, match=said):
        typed(app, f"plan {arguments}")
