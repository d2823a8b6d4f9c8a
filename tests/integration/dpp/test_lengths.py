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
from tests.support.training import train
from tests.support.varied_orders import Varied, assert_bitwise_alike, trained

pytest.importorskip("megatronapp.rdma", reason="the transport's wheel is not installed: pip install native/rdma")

TWO = "--pipeline-model-parallel-size 2"
VIRTUAL = f"{TWO} --num-virtual-stages-per-pipeline-rank 2"
TENSOR = "--tensor-model-parallel-size 2 --sequence-parallel"
DPP = "--use-dpp --dpp-policy interleaved-zb"


@pytest.fixture(scope="module")
def bert(tmp_path_factory: pytest.TempPathFactory) -> str:
    return f"{flags_of('bert', sentences(tmp_path_factory.mktemp('data')))} --short-seq-prob 0.7"


class Lengths(Plugin):
    """Looks at how long this rank's microbatches are, and at how much of them is no padding."""

    name = "lengths"
    seen: set[int]
    real: list[int]
    """By microbatch."""

    @classmethod
    def create(cls, args: argparse.Namespace, context: PluginContext) -> Self:
        cls.seen, cls.real = set(), []
        return cls()

    def data(self, iterator: Iterator[Any]) -> Iterator[Any]:
        for batch in iterator:
            self.seen.add(batch["text"].shape[1])
            self.real.append(int(batch["padding_mask"].sum()))
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


def speeds_of(flags: str, model: str) -> tuple[list[int], list[tuple[float | None, float | None, float]]]:
    """(real tokens by microbatch of this rank, (tokens/s, TFLOP/s, seconds) by step as the log has them)."""
    recording = train(f"{model} --train-iters 2 {flags}", plugins=(Lengths,))
    return Lengths.real, [(each.tokens_per_second, each.tflops_per_gpu, each.step_seconds) for each in recording.steps]


@pytest.mark.parametrize("flags", ["", pytest.param("--pipeline-model-parallel-size 2", marks=pytest.mark.long)])
def test_the_log_counts_tokens_that_are_no_padding_on_all_data_ranks(flags: str, bert: str) -> None:
    said = run_forked(4 if flags else 2, speeds_of, flags, f"{bert} --variable-seq-lengths")

    steps = said[-1][1]
    ranks = said[-2:]  # of the last stage
    per_step = [sum(sum(real[step * 2 : step * 2 + 2]) for real, _ in ranks) for step in range(2)]
    assert len(steps) == 2
    assert [speed * seconds for speed, _, seconds in steps if speed] == pytest.approx(per_step)


def test_what_is_cut_off_is_not_counted_as_computed(bert: str) -> None:
    whole, cut = (run_forked(1, speeds_of, "", f"{bert} {flag}")[0][1] for flag in ("", "--variable-seq-lengths"))

    of_whole, of_cut = ([flops * seconds for _, flops, seconds in steps if flops] for steps in (whole, cut))
    assert all(0 < less < more for less, more in zip(of_cut, of_whole, strict=True))
