"""A step in pieces makes the weights that a whole step makes, and tells of each piece's when they are made."""

from __future__ import annotations

import argparse
from collections.abc import Iterable
from typing import Any, NamedTuple, Self

import pytest
import torch

from megatronapp.trainer import launch  # noqa: F401  (imported once, before the ranks are forked)
from megatronapp.trainer.plugins.base import Plugin, PluginContext
from megatronapp.trainer.plugins.fbd.ordered_step import step_in_order
from tests.support.forked import run_forked
from tests.support.varied_orders import digest, trained

STEPS = 3
BUCKETS = "--use-distributed-optimizer --overlap-grad-reduce --ddp-bucket-size 5000"
EXPERTS = "--num-experts 4 --expert-model-parallel-size 2 --disable-bias-linear"


class Final(NamedTuple):
    layers: set[int | None]
    weights: list[torch.Tensor]
    digest: str


class InPieces(Plugin):
    """Steps layer by layer, and keeps what came in the last step, and what the weights were by then."""

    name = "in-pieces"
    pieces: list[Final]
    stays: list[bool]

    @classmethod
    def create(cls, args: argparse.Namespace, context: PluginContext) -> Self:
        return cls()

    def models(self, chunks: Any) -> None:
        named = [each for chunk in chunks for each in chunk.named_parameters()]
        self._layer_of = {
            weight: int(name.partition("decoder.layers.")[2].partition(".")[0])
            for name, weight in named
            if "decoder.layers." in name
        }

    def optimizer_built(self, optimizer: Any) -> None:
        step_in_order(optimizer, self._layer_of.get, self._tell)

    def optimizer(self, step: Any) -> Any:
        def run() -> Any:
            type(self).pieces = []
            outcome = step()
            type(self).stays = [digest(each.weights) == each.digest for each in self.pieces]
            return outcome

        return run

    def _tell(self, weights: Iterable[torch.Tensor]) -> None:
        made = list(weights)
        self.pieces.append(Final({self._layer_of.get(weight) for weight in made}, made, digest(made)))


def weights(flags: str) -> tuple[str, list[str]]:
    made = trained(flags, steps=STEPS)
    return made.weights, made.gradients


def in_pieces(flags: str) -> tuple[tuple[str, list[str]], list[set[int | None]], list[bool]]:
    made = trained(flags, InPieces, steps=STEPS)
    return (made.weights, made.gradients), [each.layers for each in InPieces.pieces], InPieces.stays


def first_uses(pieces: list[set[int | None]]) -> list[int]:
    return [min((layer for layer in layers if layer is not None), default=99) for layers in pieces]


@pytest.mark.parametrize(
    "flags",
    [
        pytest.param("", marks=pytest.mark.long),
        pytest.param("--bf16", marks=pytest.mark.long),
        pytest.param("--optimizer sgd", marks=pytest.mark.long),
        f"--bf16 {BUCKETS}",
        pytest.param(f"{BUCKETS} {EXPERTS}", marks=pytest.mark.long),
    ],
)
def test_pieces_make_the_same_weights_in_the_order_of_first_use(flags: str) -> None:
    ranks = 2 if "distributed" in flags else 1
    whole = run_forked(ranks, weights, flags)

    found = run_forked(ranks, in_pieces, flags)

    assert [made for made, _, _ in found] == whole
    for _, pieces, stays in found:
        assert len(pieces) >= 4
        assert all(stays)
        if "experts" not in flags:  # which have an optimizer of their own, that comes after the others'
            assert first_uses(pieces) == sorted(first_uses(pieces))
