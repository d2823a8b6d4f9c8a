"""--train-step: what it takes, and what a wrong one is told."""

import pytest

from megatronapp.core.errors import UsageError
from megatronapp.trainer.models.gpt import GPTTrainStep
from megatronapp.trainer.models.train_step import build_step, step_arguments, train_step_class
from tests.support.own_steps import Scaled


def test_a_class_is_found_by_its_path() -> None:
    assert train_step_class("megatronapp.trainer.models.gpt:GPTTrainStep") is GPTTrainStep


@pytest.mark.parametrize(
    ("path", "said"),
    [
        ("json", "give package.module:Class"),
        ("no.such.module:Step", "can't be imported"),
        ("..:Step", "can't be imported"),
        ("json:JSONDecoder", "is no TrainStep"),
        ("json:nothing", "is no TrainStep"),
    ],
)
def test_a_path_that_is_none_is_refused_with_the_way_out(path: str, said: str) -> None:
    with pytest.raises(UsageError, match=said):
        train_step_class(path)


@pytest.mark.parametrize("text", ["{", "[1]", "1", "[" * 100_000])
def test_arguments_that_are_no_object_are_refused(text: str) -> None:
    with pytest.raises(UsageError, match="--train-step-kwargs"):
        step_arguments(text)


def test_arguments_that_the_class_does_not_take_are_refused() -> None:
    with pytest.raises(UsageError, match=r"don't fit Scaled: .*scale"):
        build_step(Scaled, None, {"alpha": 1})  # type: ignore[arg-type]
