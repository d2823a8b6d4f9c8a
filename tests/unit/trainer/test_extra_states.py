"""Extra states of layers: which are loaded, and that nothing in them is run."""

from __future__ import annotations

import io
import os
import pickle
import sys
from enum import Enum
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch

from megatronapp.core.errors import DataError
from megatronapp.trainer.extra_states import ALLOWS_PICKLES, RECIPES, load_into

FOLDER = Path("iter_0000010")


class Scaled(torch.nn.Linear):
    """Keeps scales as Transformer Engine's layers do."""

    scales: Any = None
    allowed: str | None = None

    def get_extra_state(self) -> torch.Tensor:
        return torch.empty(0, dtype=torch.uint8)

    def set_extra_state(self, state: torch.Tensor) -> None:
        self.allowed = os.environ.get(ALLOWS_PICKLES)
        self.scales = pickle.loads(state.numpy().tobytes())  # noqa: S301  (as Transformer Engine reads it)


class Format(Enum):
    HYBRID = (448, 57344)


class DelayedScaling:
    def __init__(self) -> None:
        self.fp8_format = Format.HYBRID


class Runs:
    """What a hostile checkpoint holds."""

    def __init__(self, file: Path) -> None:
        self.file = file

    def __reduce__(self) -> tuple[Any, ...]:
        return os.mkdir, (str(self.file),)


class HoldsPickle:
    """The same, one pickle further in."""

    def __init__(self, data: bytes) -> None:
        self.data = data

    def __reduce__(self) -> tuple[Any, ...]:
        return torch.storage._load_from_bytes, (self.data,)


def state(extra: Any) -> dict[str, Any]:
    pickled = torch.frombuffer(bytearray(pickle.dumps(extra)), dtype=torch.uint8)
    return {**torch.nn.Linear(2, 2).state_dict(), "_extra_state": pickled}


@pytest.fixture
def recipes(monkeypatch: pytest.MonkeyPatch) -> None:
    """As pickles of Transformer Engine name them."""
    module = ModuleType(RECIPES)
    for each in (Format, DelayedScaling):
        monkeypatch.setattr(each, "__module__", RECIPES)
        setattr(module, each.__name__, each)
    package, _, _ = RECIPES.partition(".")
    monkeypatch.setitem(sys.modules, package, ModuleType(package))
    monkeypatch.setitem(sys.modules, RECIPES, module)


def test_scales_of_8_bit_training_are_loaded(recipes: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(ALLOWS_PICKLES, raising=False)
    layer, scales = Scaled(2, 2), torch.tensor([0.5, 2.0])

    load_into(layer, state({"recipe": DelayedScaling(), "scale_fwd": scales, "extra_fp8_variables": {"n": 3}}), FOLDER)

    assert layer.scales["scale_fwd"].equal(scales)
    assert layer.scales["recipe"].fp8_format is Format.HYBRID
    assert layer.allowed == "1"
    assert ALLOWS_PICKLES not in os.environ


@pytest.mark.parametrize("inner", [False, True])
def test_nothing_in_an_extra_state_is_run(inner: bool, tmp_path: Path) -> None:
    made = tmp_path / "made"
    hostile: Any = Runs(made)
    if inner:
        torch.save(hostile, tmp_path / "inner")
        hostile = HoldsPickle((tmp_path / "inner").read_bytes())

    with pytest.raises(DataError, match=r"_extra_state in iter_0000010 can't be read: .*"):
        load_into(Scaled(2, 2), state({"scale_fwd": hostile}), FOLDER)

    assert not made.exists()


def test_one_of_a_grouped_layers_products_is_no_way_in(tmp_path: Path) -> None:
    hostile = state({"scale_fwd": Runs(tmp_path / "made")})
    hostile["_extra_state1"] = hostile.pop("_extra_state")

    with pytest.raises(DataError, match="_extra_state1 in iter_0000010 can't be read"):
        load_into(Scaled(2, 2), hostile, FOLDER)


def test_an_extra_state_of_another_form_is_refused() -> None:
    with pytest.raises(DataError, match="can't be read: it is a BytesIO"):
        load_into(Scaled(2, 2), {**state({}), "_extra_state": io.BytesIO(b"pickle")}, FOLDER)


def test_a_layer_whose_checkpoint_has_no_extra_state_is_loaded() -> None:
    layer, saved = Scaled(2, 2), torch.nn.Linear(2, 2).state_dict()

    load_into(layer, saved, FOLDER)

    assert layer.weight.equal(saved["weight"])


def test_weights_that_are_missing_are_told() -> None:
    with pytest.raises(RuntimeError, match="iter_0000010 and the model do not both have bias"):
        load_into(Scaled(2, 2), {"weight": torch.zeros(2, 2)}, FOLDER)
