"""What the plug-in's flags ask for, and what is refused before anything starts."""

from __future__ import annotations

from pathlib import Path

import pytest
from structlog.testing import capture_logs

from megatronapp.core.errors import UsageError
from megatronapp.core.pipeline.operations import Kind, Operation
from megatronapp.core.pipeline.orders import all_stages
from megatronapp.core.pipeline.placement import Layout as Pipeline
from megatronapp.core.pipeline.placement import Placement as PartPlacement
from megatronapp.core.pipeline.policy import places_of
from megatronapp.core.pipeline.running_ahead import MOST_LAUNCHED, RECEIVES_AHEAD
from megatronapp.core.pipeline.schedule_csv import write_csv
from megatronapp.trainer import arguments
from megatronapp.trainer.environment import Environment
from megatronapp.trainer.plugins.base import Preparation
from megatronapp.trainer.plugins.dpp import DppPlugin
from megatronapp.trainer.plugins.dpp.plugin import THEIRS
from megatronapp.trainer.plugins.dpp.policies import AUTO, POLICIES, REPLAY, ZERO_BUBBLE, Policies
from megatronapp.trainer.worlds import World
from tests.support.training import TINY

TWO = "--pipeline-model-parallel-size 2 --num-virtual-stages-per-pipeline-rank 2"
ASKED = f"{TWO} --use-dpp"


def prepared(flags: str, ranks: int = 2) -> Preparation:
    config, namespace = arguments.parse(f"{TINY} --train-iters 1 {flags}".split(), [DppPlugin])
    world = World(ranks=tuple(range(ranks)), rank=0)
    given = Preparation(environment=Environment.read(), config=config, world=world)
    return DppPlugin.prepare(namespace, given)


def test_it_asks_for_messages_in_any_order_over_the_lane_that_is_named() -> None:
    assert (prepared(TWO).p2p_transport, prepared(TWO).p2p_lane) == ("torch", "")
    assert (prepared(ASKED).p2p_transport, prepared(ASKED).p2p_lane) == ("native", "")
    assert prepared(f"{ASKED} --dpp-transport tcp").p2p_lane == "tcp"


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        ("--use-dpp", "--use-dpp needs a pipeline: give --pipeline-model-parallel-size 2 or more"),
        (
            f"{ASKED} --num-layers 5",
            "--num-layers 5 is no multiple of 2 pipeline stages: change it, --pipeline-model-parallel-size, or give "
            "--decoder-first-pipeline-num-layers or --decoder-last-pipeline-num-layers",
        ),
        (
            f"{ASKED} --num-layers 6",
            "3 layers per stage can't be cut .* by --num-virtual-stages-per-pipeline-rank 2: change it",
        ),
        (f"{ASKED} --dpp-cap 1", "a cap of 1 activations can stop for ever: .* it must be at least 2"),
        (f"{ASKED} --dpp-cap 2", "--dpp-cap: a cap of 2 activations keeps the pipeline from full pace.* raise it to 3"),
        (f"{ASKED} --dpp-policy replay", "--dpp-policy replay needs the order to run: add --dpp-order FILE.csv"),
        (f"{ASKED} --dpp-policy replay --dpp-order nowhere.csv", "--dpp-order nowhere.csv can't be read"),
        (f"{ASKED} --dpp-order .", "--dpp-order . can't be written: name a file"),
        (f"{ASKED} --dpp-order nowhere/order.csv", "nowhere/order.csv can't be written: name a file in a folder"),
        (f"{ASKED} --dpp-policy zb-h1", "zero-bubble schedules take one chunk a stage"),
        (
            "--pipeline-model-parallel-size 2 --use-dpp --dpp-policy zb-h2 --recompute-granularity full "
            "--recompute-method uniform --recompute-num-layers 1",
            "--dpp-policy zb-h2 can't split W from B with --recompute-method uniform",
        ),
        (
            f"{ASKED} --dpp-policy interleaved-zb --dpp-no-split",
            "interleaved-zb can't split W from B with --dpp-no-split",
        ),
        (
            "--pipeline-model-parallel-size 2 --use-dpp --dpp-policy zb-h1 --dpp-no-split",
            "--dpp-policy zb-h1 can't split W from B with --dpp-no-split",
        ),
        (
            "--pipeline-model-parallel-size 2 --use-dpp --dpp-policy zb-h1 --transformer-impl transformer_engine "
            "--recompute-granularity selective",
            "can't split W from B with --transformer-impl transformer_engine and --recompute-granularity: leave one",
        ),
        (f"{ASKED} --dpp-policy widest", "invalid choice: 'widest'"),
        (f"{TWO} --dpp-cap 4", "--dpp-cap does nothing without --use-dpp"),
        (f"{TWO} --dpp-no-split", "--dpp-no-split does nothing without --use-dpp"),
    ],
)
def test_what_does_not_fit_is_refused_in_one_line(flags: str, said: str) -> None:
    with pytest.raises(UsageError, match=said) as raised:
        prepared(flags)
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize("splits", [True, False])
def test_w_is_put_off_where_transformer_engine_can(monkeypatch: pytest.MonkeyPatch, splits: bool) -> None:
    monkeypatch.setattr("megatronapp.trainer.plugins.dpp.plugin.puts_off_wgrad", lambda: splits)
    flags = "--pipeline-model-parallel-size 2 --use-dpp --dpp-policy zb-h1 --transformer-impl transformer_engine"

    if splits:
        assert prepared(flags).p2p_transport == "native"
    else:
        with pytest.raises(UsageError, match="transformer_engine before its version"):
            prepared(flags)


@pytest.mark.parametrize(
    ("flags", "told"),
    [
        ("--dpp-no-split", []),
        (THEIRS, []),
        (f"{THEIRS} --dpp-no-split", ["--dpp-no-split"]),
        (f"{THEIRS} --tensor-model-parallel-size 2", [f"{THEIRS} and --tensor-model-parallel-size"]),
    ],
)
def test_it_is_told_why_layers_of_transformer_engine_keep_their_w(flags: str, told: list[str]) -> None:
    with capture_logs() as logs:
        prepared(f"{ASKED} {flags}", ranks=4)

    assert [entry["since"] for entry in logs if entry["event"] == "dpp_transformer_engine"] == told


def test_an_order_of_v_placement_is_refused_since_ranks_hold_their_parts_in_loops(tmp_path: Path) -> None:
    shaped = Pipeline(stages=2, chunks=2, microbatches=4, split=True, placement=PartPlacement.V)
    (tmp_path / "order.csv").write_text(write_csv(shaped, all_stages("zbv", shaped)))

    with pytest.raises(UsageError, match=r"--dpp-order .* V placement, which megatron-core has not: replay .* loops"):
        prepared(f"{ASKED} --dpp-policy replay --dpp-order {tmp_path / 'order.csv'}")


def test_an_order_of_another_pipeline_is_refused(tmp_path: Path) -> None:
    other = Pipeline(stages=4, microbatches=8)
    (tmp_path / "order.csv").write_text(write_csv(other, all_stages("1f1b", other)))

    with pytest.raises(UsageError, match=r"is an order for .*stages=4.*, but this run has .*stages=2"):
        prepared(f"{ASKED} --dpp-policy replay --dpp-order {tmp_path / 'order.csv'}")


def test_an_order_that_stops_for_ever_is_refused(tmp_path: Path) -> None:
    layout = Pipeline(stages=2, chunks=2, microbatches=4)
    [first, last] = all_stages("interleaved", layout)
    stuck = [[*first[::-1][-1:], *first[1:]], sorted(last, key=lambda each: (each.microbatch, -each.kind))]
    (tmp_path / "order.csv").write_text(write_csv(layout, stuck))

    with pytest.raises(UsageError, match=r"order.csv is an order that stops for ever: stage 0 after .*; stage 1 after"):
        prepared(f"{ASKED} --dpp-policy replay --dpp-order {tmp_path / 'order.csv'}")


def test_hosts_run_ahead_as_far_as_a_recorded_order_asks_for(tmp_path: Path) -> None:
    """Stage 0 runs all forward passes of its first chunk first, as where all that it waits for comes late."""
    pipeline = Pipeline(stages=2, chunks=2, microbatches=16)
    forward, backward = (
        [[Operation(kind, chunk, i) for i in range(16)] for chunk in (0, 1)] for kind in (Kind.FORWARD, Kind.BACKWARD)
    )
    turns = [[each for pair in zip(*lanes, strict=True) for each in pair] for lanes in (forward, backward[::-1])]
    recorded = [[*forward[0], *forward[1], *backward[1], *backward[0]], turns[0] + turns[1]]
    (tmp_path / "order.csv").write_text(write_csv(pipeline, recorded))

    replay, auto = Policies(pipeline, REPLAY, order=tmp_path / "order.csv"), Policies(pipeline, AUTO)

    assert (replay.receives_ahead, replay.most_launched) == (8, 14)
    assert (auto.receives_ahead, auto.most_launched) == (RECEIVES_AHEAD, MOST_LAUNCHED)


@pytest.mark.parametrize("name", [name for name in POLICIES if name not in (AUTO, REPLAY)])
def test_a_policy_runs_the_hint_that_simulate_knows_by_its_name(name: str) -> None:
    layout = Pipeline(stages=2, chunks=1 if name in ZERO_BUBBLE else 2, microbatches=4, split=True)

    policies = Policies(layout, name)

    assert [policies.places(stage) for stage in range(2)] == [
        places_of(layout, order) for order in all_stages(name, layout)
    ]


@pytest.mark.parametrize(("split", "hint"), [(True, "interleaved-zb"), (False, "interleaved")])
def test_auto_runs_the_order_with_places_for_w_where_it_is_split(split: bool, hint: str) -> None:
    layout = Pipeline(stages=2, chunks=2, microbatches=4, split=split)

    assert Policies(layout, AUTO).places(0) == Policies(layout, hint).places(0)


@pytest.mark.parametrize(
    ("cap", "split", "has"), [(None, True, True), (5, True, True), (4, True, False), (5, False, False)]
)
def test_the_hint_may_be_run_as_it_is_where_it_puts_w_off_and_fits_into_the_cap(
    cap: int | None, split: bool, has: bool
) -> None:
    layout = Pipeline(stages=2, chunks=2, microbatches=4, split=split)

    assert Policies(layout, "auto", cap).has_plan == has
    assert Policies(layout, "auto", cap).planned(layout, 0).strict
