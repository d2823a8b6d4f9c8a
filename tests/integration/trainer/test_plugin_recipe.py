"""A checkpoint of a run whose plug-in changed the model goes on with that plug-in alone."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any, Self

import pytest

from megatronapp.core.errors import UsageError
from megatronapp.trainer import checkpoint_folder, launch  # noqa: F401  (imported once, before the ranks are forked)
from megatronapp.trainer.plugins.base import Plugin, PluginContext
from tests.support.forked import run_forked
from tests.support.training import TINY, train


class Soften(Plugin):
    """Divides the attention's scores by more than their width says."""

    name = "soften"

    def __init__(self, scale: float) -> None:
        self._scale = scale

    @classmethod
    def add_arguments(cls, parser: argparse.ArgumentParser) -> None:
        parser.add_argument("--soften", type=float)

    @classmethod
    def create(cls, args: argparse.Namespace, context: PluginContext) -> Self | None:
        return cls(args.soften) if args.soften else None

    def configure(self, config: Any) -> None:
        config.softmax_scale = self._scale


def trained(flags: str, plugins: tuple[type[Plugin], ...]) -> list[float]:
    return train(f"{TINY} {flags}", plugins=plugins).losses


def refusal(flags: str, plugins: tuple[type[Plugin], ...]) -> str:
    with pytest.raises(UsageError) as refused:
        train(f"{TINY} {flags}", plugins=plugins)
    return str(refused.value)


@pytest.fixture(scope="module")
def softened(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("softened")
    run_forked(1, trained, f"--train-iters 1 --soften 0.25 --save {folder}", (Soften,))
    return folder


@pytest.mark.parametrize(
    ("now", "plugins", "said"),
    [
        ("", (Soften,), "--soften 0.25, not unset"),
        ("", (), "--soften 0.25, not unset"),
        ("--soften 0.5", (Soften,), "--soften 0.25, not 0.5"),
    ],
)
def test_every_rank_refuses_the_model_without_it(
    now: str, plugins: tuple[type[Plugin], ...], said: str, softened: Path
) -> None:
    before = sorted(softened.iterdir())

    found = run_forked(2, refusal, f"--train-iters 2 {now} --save {softened}", plugins)

    assert found[0] == found[1]
    assert f"was saved with {said}: give the same plug-ins" in found[0]
    assert sorted(softened.iterdir()) == before


def test_with_it_the_run_goes_on_and_its_next_checkpoint_knows(softened: Path) -> None:
    found = run_forked(1, trained, f"--train-iters 2 --soften 0.25 --load {softened} --save {softened}", (Soften,))

    assert len(found[0]) == 1
    saved = json.loads((softened / checkpoint_folder.folder_name(2) / checkpoint_folder.RECIPE).read_text())
    assert saved["plugins"] == {"soften": {"flags": {"--soften": 0.25}, "changes": {"softmax_scale": "0.25"}}}
