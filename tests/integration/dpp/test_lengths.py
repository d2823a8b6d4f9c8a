"""Microbatches as long as their longest sequence: MegaDPP trains them bit for bit as megatron-core's schedules do."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from functools import partial
from typing import Any, Self

import pytest

from megatronapp.trainer import launch  # noqa: F401  (imported once, before the ranks are forked)
from megatronapp.trainer.plugins.base import Plugin, PluginContext
from tests.support.families import flags_of, sentences
from tests.support.forked import run_forked
from tests.support.varied_orders import Varied, assert_bitwise_alike, trained

pytest.importorskip("megatronapp.rdma", reason="the transport's wheel is not installed: pip install native/rdma")

TWO = "--pipeline-model-parallel-size 2"
VIRTUAL = f"{TWO} --num-virtual-stages-per-pipeline-rank 2"
TENSOR = "--tensor-model-parallel-size 2 --sequence-parallel"
DPP = "--use-dpp --dpp-policy interleaved"


@pytest.fixture(scope="module")
def bert(tmp_path_factory: pytest.TempPathFactory) -> str:
    return f"{flags_of('bert', sentences(tmp_path_factory.mktemp('data')))} --short-seq-prob 0.7"


class Lengths(Plugin):
    """Looks at how long this rank's microbatches are."""

    name = "lengths"
    seen: set[int]

    @classmethod
    def create(cls, args: argparse.Namespace, context: PluginContext) -> Self:
        cls.seen = set()
        return cls()

    def data(self, iterator: Iterator[Any]) -> Iterator[Any]:
        for batch in iterator:
            self.seen.add(batch["text"].shape[1])
            yield batch


def lengths_of(flags: str, model: str) -> set[int]:
    trained(flags, Lengths, steps=2, model=model)
    return Lengths.seen


@pytest.mark.timeout(300)
@pytest.mark.parametrize(
    ("ranks", "chunks", "flags"),
    [
        pytest.param(2, 2, VIRTUAL, id="PP 2 × VPP 2"),
        pytest.param(4, 1, f"{TWO} {TENSOR}", id="PP 2 × TP 2, sequence parallel", marks=pytest.mark.long),
        pytest.param(4, 2, f"{VIRTUAL} --global-batch-size 16", id="PP 2 × VPP 2 × DP 2", marks=pytest.mark.long),
        pytest.param(4, 1, "--pipeline-model-parallel-size 4", id="PP 4", marks=pytest.mark.long),
    ],
)
def test_losses_and_gradients_are_bitwise_stocks_in_every_order(ranks: int, chunks: int, flags: str, bert: str) -> None:
    run = partial(trained, model=f"{bert} --variable-seq-lengths")

    stock = run_forked(ranks, run, f"{flags} --p2p-transport native")
    chosen = run_forked(ranks, run, f"{flags} {DPP}", Varied)

    assert_bitwise_alike(chosen, stock, chunks)


@pytest.mark.long
@pytest.mark.parametrize("transport", ["torch", "native"])
@pytest.mark.parametrize("flags", [VIRTUAL, f"{VIRTUAL} --no-overlap-p2p-communication", TWO])
def test_stocks_schedules_have_the_losses_of_one_process(flags: str, transport: str, bert: str) -> None:
    model = f"{bert} --variable-seq-lengths"

    [alone] = run_forked(1, partial(trained, model=model), "")
    staged = run_forked(2, partial(trained, model=model), f"{flags} --p2p-transport {transport}")

    assert staged[-1].losses == pytest.approx(alone.losses, rel=1e-5)


@pytest.mark.long
def test_what_is_cut_off_changes_no_loss(bert: str) -> None:
    whole, cut = (
        run_forked(1, partial(trained, model=f"{bert} {flag}"), "")[0] for flag in ("", "--variable-seq-lengths")
    )

    assert cut.losses == pytest.approx(whole.losses, rel=1e-5)


def test_microbatches_differ_in_length(bert: str) -> None:
    [seen] = run_forked(1, lengths_of, "", f"{bert} --variable-seq-lengths")

    assert len(seen) > 2
