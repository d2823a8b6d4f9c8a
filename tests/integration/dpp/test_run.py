"""MegaDPP as its user meets it: flags, the order that a run leaves and another replays, a rank that dies."""

from __future__ import annotations

import argparse
import os
import signal
import time
from functools import partial
from pathlib import Path
from typing import Any, Self

import pytest
import torch
from megatron.core.pipeline_parallel import schedules
from megatron.core.utils import get_model_config

from megatronapp.cli.pipeline.recordings import rank_files, read_recording
from megatronapp.core.errors import TrainingError, UsageError
from megatronapp.core.pipeline.caps import stock_cap
from megatronapp.core.pipeline.orders import all_stages
from megatronapp.core.pipeline.pass_codes import unpacked
from megatronapp.core.pipeline.schedule_csv import read_csv
from megatronapp.core.trace import file as trace_files
from megatronapp.core.trace.columns import span_columns
from megatronapp.trainer import launch  # noqa: F401  (imported once, before the ranks are forked)
from megatronapp.trainer.pipeline.dynamic import REFUSED
from megatronapp.trainer.pipeline.native import NativeTransport
from megatronapp.trainer.plugins.base import Plugin, PluginContext
from megatronapp.trainer.plugins.dpp import DppPlugin
from megatronapp.trainer.plugins.dpp.plugin import IN_FLIGHT_BYTES
from megatronapp.trainer.plugins.scan import ScanPlugin
from tests.support.agents import agent
from tests.support.forked import run_forked
from tests.support.own_wgrad import OwnWgrad
from tests.support.varied_orders import STOCK, TRIAL_KINDS, TRIAL_STEPS, Counting, trained
from tests.support.victim import Victim

pytest.importorskip("megatronapp.rdma", reason="the transport's wheel is not installed: pip install native/rdma")

TWO = "--pipeline-model-parallel-size 2 --num-virtual-stages-per-pipeline-rank 2"


def test_auto_tries_all_in_turns_and_its_order_can_be_replayed(tmp_path: Path) -> None:
    file, steps = tmp_path / "order.csv", TRIAL_STEPS + 2
    stock = run_forked(2, partial(trained, steps=steps), TWO)

    auto = run_forked(2, partial(trained, steps=steps), f"{TWO} --use-dpp --dpp-order {file}", Counting)
    layout, orders = read_csv(file.read_text())
    again = f"{TWO} --use-dpp --dpp-policy replay --dpp-order {file}"
    replayed = run_forked(2, partial(trained, steps=2), again, Counting)

    assert [each.gradients for each in auto] == [each.gradients for each in stock]
    assert auto[-1].losses == stock[-1].losses
    kinds = [[bool(order) for order in each.orders] for each in auto]
    assert kinds[0] == kinds[1]  # both ranks decided alike
    assert kinds[0][:TRIAL_STEPS] == [kind != STOCK for kind in TRIAL_KINDS] * 2
    assert kinds[0][TRIAL_STEPS] == kinds[0][TRIAL_STEPS + 1]
    hint = all_stages("interleaved-zb", layout)
    assert [each.orders[1] for each in auto] == hint, "a planned step runs the hint as it is"
    assert (layout.stages, layout.chunks, layout.microbatches) == (2, 2, 4)
    assert [each.orders for each in replayed] == [[order, order] for order in orders]
    assert [each.gradients for each in replayed] == [each.gradients[:2] for each in stock]


@pytest.mark.parametrize("more", [pytest.param("", marks=pytest.mark.long), "--overlap-grad-reduce"])
def test_layers_that_put_off_their_own_wgrad_train_as_stock_does(more: str) -> None:
    """In all three kinds of steps: by choice, in the hint's order, and as megatron-core's schedule."""
    flags = f"{TWO} {more}"
    stock = run_forked(2, partial(trained, steps=TRIAL_STEPS), flags)

    auto = run_forked(2, partial(trained, steps=TRIAL_STEPS), f"{flags} --use-dpp", OwnWgrad, Counting)

    assert [each.gradients for each in auto] == [each.gradients for each in stock]
    assert auto[-1].losses == stock[-1].losses
    assert [[bool(order) for order in each.orders] for each in auto] == [
        [kind != STOCK for kind in TRIAL_KINDS] * 2
    ] * 2


@pytest.mark.parametrize("stages", [TWO, "--pipeline-model-parallel-size 2"])
def test_an_output_that_was_sent_keeps_no_memory_until_its_backward_pass(stages: str) -> None:
    ranks = run_forked(2, elements_of_outputs, f"{stages} --use-dpp --dpp-policy interleaved")

    assert [set(each) for each in ranks] == [{1}, {1}]  # the last one's are losses


def elements_of_outputs(flags: str) -> list[int]:
    """What was left of each when its backward pass began."""
    elements = []
    backward_step = schedules.backward_step

    def counted(activation: Any, output: torch.Tensor, *args: Any) -> Any:
        elements.append(output.untyped_storage().nbytes() // output.itemsize)
        return backward_step(activation, output, *args)

    schedules.backward_step = counted
    trained(flags, DppPlugin, steps=1)
    return elements


def test_a_trace_tells_the_order_of_each_stage(tmp_path: Path) -> None:
    trace = f"--trace --trace-dir {tmp_path} --trace-interval 1 --continuous-trace-iterations 1"
    flags = f"{TWO} --use-dpp --dpp-policy interleaved-zb {trace}"

    with agent() as environment:
        ranks = run_forked(2, partial(trained, steps=3), flags, ScanPlugin, Counting, environment=environment)
    recorded = read_recording(tmp_path)

    for stage, each in enumerate(rank_files(tmp_path)):
        told = [message.summary.order for message in trace_files.read(each) if message.WhichOneof("body") == "summary"]
        assert [unpacked(order, recorded.layout) for order in told] == ranks[stage].orders
        held, caps = told_by(each, "decide")
        assert caps == {stock_cap(recorded.layout)}
        assert {0, 1} < held <= set(range(max(caps) + 1))
        _, caps = told_by(each, "in_flight")
        assert caps == {IN_FLIGHT_BYTES}
    assert recorded.layout.split
    assert len(recorded) == 2  # the first is no measure of the others
    assert [recorded.orders(step) for step in range(2)] == [
        [rank.orders[step + 1] for rank in ranks] for step in range(2)
    ]


def told_by(file: Path, name: str) -> tuple[set[int], set[int]]:
    """(what the rank held at its choices, the caps of it), as its spans of this name tell them."""
    held, caps = set(), set()
    for message in trace_files.read(file):
        if message.WhichOneof("body") == "batch":
            columns = span_columns(message.batch)
            rows = columns["name"] == list(message.batch.names).index(name)
            held |= set(columns["tokens"][rows].tolist())
            caps |= set(columns["length_squares"][rows].tolist())
    return held, caps


class Drawing(Plugin):
    """Draws from the random states of hidden and of attention dropout as each forward pass begins."""

    name = "drawing"
    drawn: list[tuple[float, float]]

    @classmethod
    def create(cls, args: argparse.Namespace, context: PluginContext) -> Self:
        cls.drawn = []
        return cls()

    def forward_step(self, function: Any) -> Any:
        from megatron.core.tensor_parallel.random import get_cuda_rng_tracker

        def run(*args: Any, **kwargs: Any) -> Any:
            hidden = float(torch.rand(()))
            with get_cuda_rng_tracker().fork():
                self.drawn.append((hidden, float(torch.rand(()))))
            return function(*args, **kwargs)

        return run


def draws() -> list[tuple[float, float]]:
    flags = f"{TWO} --tensor-model-parallel-size 2 --use-dpp --dpp-policy interleaved-zb --hidden-dropout 0.1"
    trained(flags, DppPlugin, Drawing, steps=2)
    return Drawing.drawn


@pytest.mark.long
def test_tensor_parallel_ranks_draw_the_same_hidden_masks_and_others_of_their_own_shards() -> None:
    first, second, *next_stage = run_forked(4, draws)
    hidden, attention = ([[draw[kind] for draw in rank] for rank in (first, second, *next_stage)] for kind in range(2))

    assert hidden[0] == hidden[1]
    assert hidden[2] == hidden[3]
    assert len({*hidden[0], *hidden[2], *attention[0], *attention[1], *attention[2], *attention[3]}) == 6 * len(first)
    assert len(first) == 2 * 2 * 4  # steps × chunks × microbatches


class Refusing(DppPlugin):
    """Tries a step with each setting that a dynamic order can't run, and then one without."""

    said: dict[str, str]

    def schedule(self, function: Any) -> Any:
        scheduled = super().schedule(function)
        Refusing.said = {}

        def run(**kwargs: Any) -> Any:
            config = get_model_config(kwargs["model"][0])
            for name in REFUSED:
                usual = getattr(config, name)
                setattr(config, name, True)
                with pytest.raises(UsageError) as raised:
                    scheduled(**kwargs)
                self.said[name] = str(raised.value)
                setattr(config, name, usual)
            return scheduled(**kwargs)

        return run


def refusals(flags: str) -> dict[str, str]:
    assert len(trained(flags, Refusing, steps=1).gradients) == 1
    return Refusing.said


def test_settings_that_change_what_a_schedule_does_are_refused_by_name() -> None:
    for said in run_forked(2, refusals, f"{TWO} --use-dpp --dpp-policy interleaved-zb"):
        assert {"mtp_num_layers", "cuda_graph_impl"} < said.keys()
        assert all(f"can't run with {name}; unset it" in text for name, text in said.items())


class Dying(Victim):
    """One rank dies in the middle of a step's forward passes, and writes down when."""

    name = "dying"
    died_at = Path()
    passes = 0

    def forward_step(self, function: Any) -> Any:
        def run(*args: Any, **kwargs: Any) -> Any:
            self.passes += 1
            if self.is_victim and self.passes == 10:
                self.died_at.write_text(str(time.monotonic()))
                os.kill(os.getpid(), signal.SIGKILL)
            return function(*args, **kwargs)

        return run


def error_of(flags: str, victim: int, died_at: Path) -> tuple[str, float] | None:
    """What a rank that lives on says, and how many seconds after the death."""
    Dying.victim, Dying.died_at = victim, died_at
    try:
        trained(f"{flags} --use-dpp --dpp-policy interleaved-zb", DppPlugin, Dying)
    except TrainingError as error:
        return str(error), time.monotonic() - float(died_at.read_text())
    return None


@pytest.mark.parametrize("victim", [1, pytest.param(3, marks=pytest.mark.long)])
def test_a_rank_that_is_killed_is_named_by_its_neighbours(victim: int, tmp_path: Path) -> None:
    flags = "--pipeline-model-parallel-size 4"

    said = run_forked(4, error_of, flags, victim, tmp_path / "died_at", may_die=[victim])

    assert said[victim] is None
    for neighbour in {victim - 1, victim + 1} & set(range(4)):
        assert f"rank {victim} is lost" in str(said[neighbour])


@pytest.mark.long
@pytest.mark.parametrize("victim", range(4))
def test_a_tensor_parallel_rank_that_is_killed_is_named_within_two_seconds(victim: int, tmp_path: Path) -> None:
    flags = "--pipeline-model-parallel-size 2 --tensor-model-parallel-size 2"

    said = run_forked(4, error_of, flags, victim, tmp_path / "died_at", may_die=[victim])

    assert said[victim] is None
    others = [each for each in said if each is not None]
    assert len(others) == 3
    first, seconds = min(others, key=lambda each: each[1])
    assert f"rank {victim} is lost" in first
    assert seconds < 2
    assert f"rank {victim} is lost" in str(said[victim ^ 1])  # the other rank of its stage


@pytest.mark.long
def test_a_lane_that_is_named_is_taken_though_another_is_faster() -> None:
    assert run_forked(2, lanes_of, f"{TWO} --use-dpp --dpp-transport tcp") == ["tcp", "tcp"]


class Looking(DppPlugin):
    """Remembers how its messages travel."""

    lane = ""

    def __init__(self, args: argparse.Namespace, context: PluginContext) -> None:
        super().__init__(args, context)
        assert isinstance(self._pipeline.transport, NativeTransport)
        [route] = self._pipeline.transport.engine.lanes().values()
        Looking.lane = str(route)


def lanes_of(flags: str) -> str:
    trained(flags, Looking, steps=1)
    return Looking.lane


@pytest.mark.long
def test_a_run_goes_on_from_a_checkpoint_bit_for_bit(tmp_path: Path) -> None:
    flags = f"{TWO} --use-dpp --dpp-policy interleaved-zb --hidden-dropout 0.1 --bf16"
    saving = f"{flags} --save {tmp_path} --save-interval 3"
    whole = run_forked(2, partial(trained, steps=6), flags, Counting)

    run_forked(2, partial(trained, steps=3), saving, Counting)
    resumed = run_forked(2, partial(trained, steps=6), f"{saving} --load {tmp_path}", Counting)

    assert [each.gradients for each in resumed] == [each.gradients[3:] for each in whole]
    assert resumed[-1].losses == whole[-1].losses[3:]


@pytest.mark.long
def test_bfloat16_is_bitwise_stocks() -> None:
    flags, run = f"{TWO} --bf16", partial(trained, steps=4)

    stock = run_forked(2, run, flags)
    chosen = run_forked(2, run, f"{flags} --use-dpp --dpp-policy interleaved-zb", Counting)

    assert [each.gradients for each in chosen] == [each.gradients for each in stock]
    assert chosen[-1].losses == stock[-1].losses
