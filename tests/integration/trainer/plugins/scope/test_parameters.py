"""Every parameter, and what the optimizer keeps of it, is shown whole in each layout, as NumPy computes it."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Any, ClassVar, Self

import numpy as np
import numpy.typing as npt
import pytest
import torch

from megatronapp.core.scope.expression import parse
from megatronapp.core.scope.plan import plan
from megatronapp.core.scope.quantize import Values
from megatronapp.core.scope.reduce import reduce_shard as reduced_by_numpy
from megatronapp.core.scope.results import Result
from megatronapp.core.scope.sites import Axis
from megatronapp.core.scope.stitch import Piece, canonical, needed, piece_of, stitch
from megatronapp.trainer import launch  # noqa: F401  (imported once, before the ranks are forked)
from megatronapp.trainer.plugins.base import Plugin, PluginContext
from tests.support.forked import run_forked
from tests.support.training import TINY, train

LLAMA = (
    "--position-embedding-type rope --normalization RMSNorm --swiglu --group-query-attention --num-query-groups 2 "
    "--untie-embeddings-and-output-weights --disable-bias-linear"
)
MOE = "--num-experts 4 --moe-router-topk 2 --disable-bias-linear"
FLAGS = {"gpt": "", "llama": LLAMA, "moe": MOE}
ADAM = "--train-iters 2 --clip-grad 0 --weight-decay 0 --adam-beta1 0.9 --adam-beta2 0.95"
SHARDED = "--use-distributed-optimizer"
EXPRESSIONS = ("", " | stats(l2,absmax,p50)")
"""Of all cells, and of what no rank has all of."""
Floats = npt.NDArray[np.float32]
Where = tuple[str, int | None]
ADAM_OF_NOTHING = 1e-5
"""Where a gradient is nothing but rounding, as of a key's bias, Adam makes a part of a step of that: here a hundredth
at most."""
slower = pytest.mark.long


@dataclass
class Kept:
    """What a rank has at the begin of the second step."""

    parts: dict[Where, tuple[tuple[Axis, ...], list[Result | None]]] = field(default_factory=dict)
    gradients: dict[str, Floats] = field(default_factory=dict)
    """Of the first step, by the parameter's name in the whole model."""
    parameters: dict[str, Floats] = field(default_factory=dict)


class Keeper(Plugin):
    name = "keeper"
    found: ClassVar[Kept] = Kept()

    @classmethod
    def create(cls, args: argparse.Namespace, context: PluginContext) -> Self:
        return cls()

    def models(self, chunks: Sequence[torch.nn.Module]) -> None:
        from megatronapp.trainer.plugins.scope.weights import weights

        self.weights = list(weights(chunks))

    def optimizer_built(self, optimizer: Any) -> None:
        from megatronapp.trainer.plugins.scope.optimizer_states import OptimizerStates
        from megatronapp.trainer.plugins.scope.parameters import held_states, held_weights

        states = OptimizerStates(optimizer)
        self.held = [*held_weights(self.weights), *held_states(self.weights, lambda each: states.of(each.parameter))]

    def optimizer(self, step: Callable[[], Any]) -> Callable[[], Any]:
        def noted() -> Any:
            for each in () if self.found.gradients else self.weights:
                self.found.gradients[each.name] = _numpy(each.parameter.main_grad)
            return step()

        return noted

    def step_begin(self, step: int) -> None:
        from megatronapp.trainer.plugins.scope.reduce import reduce_shard

        if step != 2:
            return
        self.found.parameters = {each.name: _numpy(each.parameter) for each in self.weights}
        for each in self.held:
            shown, axes = each.read(), each.site.axes
            assert shown is not None, each.site.name
            results: list[Result | None] = []
            for text in EXPRESSIONS:
                made = plan(parse(each.site.name + text), each.site.name, axes, quantizer="f32")
                result = reduce_shard(shown.value, shown.absent, axes, made.rank, partial=made.partial)
                results.append(None if result is None else result.on_host())
            self.found.parts[each.site.name, each.spot.layer] = axes, results


def _numpy(value: torch.Tensor) -> Floats:
    return value.detach().float().numpy().copy()


def run_kept(flags: str) -> Kept:
    Keeper.found = Kept()
    train(flags, plugins=(Keeper,))
    return Keeper.found


@cache
def kept(model: str, ranks: int, layout: str) -> list[Kept]:
    return run_forked(ranks, run_kept, f"{TINY} {ADAM} {FLAGS[model]} {layout}")


def whole(ranks: Sequence[Kept], where: Where, number: int) -> Floats:
    """As the gateway puts it together."""
    parts: dict[Piece, Result] = {}
    for rank in ranks:
        axes, results = rank.parts.get(where, ((), []))
        if not results:
            continue
        made = plan(parse(where[0] + EXPRESSIONS[number]), where[0], axes, quantizer="f32")
        piece, result = canonical(made, piece_of(axes)), results[number]
        if piece is not None and result is not None:
            parts.setdefault(piece, result)
    assert parts.keys() == needed(made), where
    result, missing = stitch(made, parts)
    assert isinstance(result, Values)
    assert not missing
    return result.array


def by_numpy(reference: Kept) -> dict[Where, Floats]:
    """All that a process by itself has, of Adam after one step."""
    found: dict[Where, Floats] = {}
    for name, value in reference.parameters.items():
        layer, short = None, name
        if name.startswith("layers."):
            _, number, short = name.split(".", 2)
            layer = int(number)
        gradient = reference.gradients[name]
        found[f"weight.{short}", layer] = value
        found[f"opt.exp_avg.{short}", layer] = np.float32(0.1) * gradient
        found[f"opt.exp_avg_sq.{short}", layer] = np.float32(0.05) * gradient**2
    return found


@pytest.mark.parametrize(
    ("model", "ranks", "layout"),
    [
        pytest.param("gpt", 1, "", marks=slower),
        pytest.param("gpt", 2, SHARDED, marks=slower),
        pytest.param("gpt", 4, "--tensor-model-parallel-size 2 --pipeline-model-parallel-size 2", marks=slower),
        ("llama", 4, f"--tensor-model-parallel-size 2 --sequence-parallel {SHARDED}"),
        pytest.param(
            "llama",
            4,
            f"--pipeline-model-parallel-size 2 --num-layers-per-virtual-pipeline-stage 1 {SHARDED}",
            marks=slower,
        ),
        pytest.param("moe", 2, f"--expert-model-parallel-size 2 {SHARDED}", marks=slower),
        pytest.param("moe", 2, f"--expert-model-parallel-size 2 --moe-grouped-gemm {SHARDED}", marks=slower),
        pytest.param("moe", 4, f"--expert-model-parallel-size 2 {SHARDED}", marks=slower),
        pytest.param("moe", 4, "--tensor-model-parallel-size 2 --sequence-parallel", marks=slower),
    ],
)
def test_parameters_and_states_are_whole_in_each_layout(model: str, ranks: int, layout: str) -> None:
    [alone] = kept(model, 1, "")
    found = kept(model, ranks, layout)

    expected = by_numpy(alone)
    assert {where for each in found for where in each.parts} == expected.keys()
    for where, values in expected.items():
        shown, statistics = (whole(found, where, number) for number in range(len(EXPRESSIONS)))
        assert shown.shape == values.shape
        rounding = ADAM_OF_NOTHING if where[0].startswith("weight.") else 1e-12
        np.testing.assert_allclose(
            shown, values, rtol=0, atol=2e-5 * np.abs(values).max() + rounding, err_msg=str(where)
        )
        axes = tuple(Axis(name, size) for name, size in zip(("out", "in"), values.shape, strict=False))
        over_all = reduced_by_numpy(Values(shown), axes, parse(where[0] + EXPRESSIONS[1]).operations)
        assert isinstance(over_all, Values)
        np.testing.assert_allclose(statistics, over_all.array, rtol=1e-6, err_msg=str(where))
