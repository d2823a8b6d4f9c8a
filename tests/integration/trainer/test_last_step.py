"""All ranks end together: rank 0 may hold the store that the others still look into behind the last step."""

from __future__ import annotations

import argparse
import time
from typing import Self

from megatronapp.core.trace.values import Progress
from megatronapp.trainer import launch  # noqa: F401  (imported once, before the ranks are forked)
from megatronapp.trainer.plugins.base import Plugin, PluginContext
from tests.support.forked import run_forked
from tests.support.training import TINY, train


class Lingering(Plugin):
    """The second rank is not through with its step when the first one is."""

    name = "lingering"

    @classmethod
    def create(cls, args: argparse.Namespace, context: PluginContext) -> Self | None:
        return cls() if context.identity.rank == 1 else None

    def step_end(self, step: int, progress: Progress | None) -> None:
        time.sleep(1.5)


def losses() -> list[float]:
    return train(f"{TINY} --train-iters 1", plugins=(Lingering,)).losses


def test_a_rank_that_comes_late_to_the_end_still_finds_the_store() -> None:
    _, last = run_forked(2, losses)

    assert len(last) == 1
