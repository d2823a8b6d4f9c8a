"""`megatronapp plan`, as it is typed."""

from __future__ import annotations

import json

import pytest

from megatronapp.cli.main import app
from megatronapp.core.errors import UsageError
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


def test_where_nothing_is_faster_it_says_to_run_stock() -> None:
    assert "run stock: nothing that fits is faster" in typed(app, f"plan {FOUR} --chunks 2 --split-overhead 0.5")


def test_several_numbers_of_chunks_are_compared() -> None:
    answer = json.loads(typed(app, f"plan {FOUR} --chunks 1,2 --tensor 8 --replicas 16 --json"))

    assert answer["gpus"] == 512
    assert {each["chunks"] for each in answer["tried"]} == {1, 2}


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (f"{FOUR} --chunks two", "--chunks two: write a number"),
        (f"{FOUR} --chunks 0", "at least one of its chunks"),
        (f"{FOUR} --chunks 1,2 --cap-limit 8", "name one number of --chunks with it"),
        (f"{FOUR} --chunks 2 --cap-limit 1", "nothing fits into 1 activations"),
        (f"{FOUR} --split-overhead 3", "--split-overhead is from 0 to 1"),
    ],
)
def test_bad_input_is_one_line_that_says_what_to_change(arguments: str, said: str) -> None:
    with pytest.raises(UsageError, match=said):
        typed(app, f"plan {arguments}")
