"""Flags to two worlds, and what can't run so."""

from __future__ import annotations

import pytest

from megatronapp.core.errors import UsageError
from megatronapp.core.pipeline.partition import Mode
from megatronapp.trainer import arguments
from megatronapp.trainer.environment import Environment
from megatronapp.trainer.model import padded_vocabulary
from megatronapp.trainer.plugins.base import Preparation
from megatronapp.trainer.plugins.dpp import DppPlugin
from megatronapp.trainer.plugins.fbd import FbdPlugin
from megatronapp.trainer.plugins.fbd.plan import Plan, doubts
from megatronapp.trainer.worlds import World
from tests.support.training import TINY

ASKED = "--pipeline-model-parallel-size 2 --forward-backward-disaggregating"
TWO = f"{ASKED} --tensor-model-parallel-size 2"
LINEARS = "--forward-backward-disaggregating --fbd-mode linears"
ONE = "--ignore-forward-tensor-parallel"
FOUR = f"{ASKED} --forward-tensor-model-parallel-size 4 --forward-pipeline-model-parallel-size 1"


def prepared(flags: str, ranks: int, rank: int = 0, *, local_rank: int = 0) -> Preparation:
    config, namespace = arguments.parse(f"{TINY} --train-iters 1 {flags}".split(), [DppPlugin, FbdPlugin])
    environment = Environment(rank=rank, local_rank=local_rank, world_size=ranks, checkpoint_dir="/checkpoints")
    world = World.whole(environment)
    return FbdPlugin.prepare(namespace, Preparation(environment=environment, config=config, world=world))


def test_without_its_flag_nothing_changes() -> None:
    unchanged = prepared("", 2)

    assert (unchanged.role, unchanged.world, unchanged.p2p_transport) == ("", World(ranks=(0, 1), rank=0), "torch")


def test_ranks_are_cut_into_two_worlds_with_layouts_of_their_own() -> None:
    both = [prepared(f"{TWO} {ONE} --sequence-parallel", 6, rank) for rank in range(6)]

    assert [each.role for each in both] == ["forward", "backward", "backward"] * 2
    forward, backward = both[3], both[4]
    assert (forward.world.ranks, forward.world.rank) == ((0, 3), 1)
    assert (backward.world.ranks, backward.world.rank) == ((1, 2, 4, 5), 2)
    assert (forward.layout.tensor, forward.layout.ranks, backward.layout.tensor, backward.layout.ranks) == (1, 2, 2, 4)
    assert forward.layout.microbatches == backward.layout.microbatches
    assert not forward.config.parallel.sequence_parallel


def test_roles_may_lie_apart() -> None:
    roles = [prepared(f"{TWO} {ONE} --fbd-roles-apart", 6, rank).role for rank in range(6)]

    assert roles == ["backward"] * 4 + ["forward"] * 2


def test_forward_ranks_on_cpus_see_no_gpu_and_backward_ranks_count_a_hosts_gpus_among_themselves() -> None:
    both = [prepared(f"{ASKED} --fbd-forward-on-cpus", 8, rank, local_rank=rank % 4) for rank in range(8)]

    assert [each.role for each in both[4:]] == ["forward", "backward"] * 2
    assert [each.variables for each in both[4:]] == [{"CUDA_VISIBLE_DEVICES": ""}, {}] * 2
    assert [each.environment.local_rank for each in both if each.role == "backward"] == [0, 1, 0, 1]


def test_forward_ranks_on_cpus_meet_over_gloo_whatever_the_backward_ranks_do() -> None:
    both = [prepared(f"{ASKED} --fbd-forward-on-cpus --distributed-backend nccl", 4, rank) for rank in range(2)]

    assert [each.config.parallel.distributed_backend for each in both] == ["gloo", "nccl"]


@pytest.mark.parametrize(("speed", "pays"), [("", False), ("--fbd-forward-speed 0.8", True)])
def test_forward_on_cpus_pays_where_they_are_said_to_be_fast_enough(speed: str, pays: bool) -> None:
    flags = f"{TINY} --train-iters 1 {LARGE} --fbd-mode input --fbd-memory-gib 40 --fbd-forward-on-cpus"
    namespace = arguments.parse(f"{flags.replace('--fbd-forward-speed 0.8', '')} {speed}".split(), [FbdPlugin])[1]

    reason = doubts(namespace, Plan.of(namespace, 8))

    assert ("forward devices take" not in reason) is pays
    assert bool(reason) is not pays


LARGE = (
    "--forward-backward-disaggregating --pipeline-model-parallel-size 4 --num-layers 32 --hidden-size 4096 "
    "--num-attention-heads 32 --seq-length 4096 --micro-batch-size 1 --global-batch-size 64 --fbd-forward-speed 0.8 "
    "--fbd-forward-memory-gib 24 --fbd-mode auto"
)


@pytest.mark.parametrize(
    ("figures", "mode"),
    [("--fbd-memory-gib 40", Mode.INPUT), ("--fbd-memory-gib 141 --fbd-link-gbps 3600", Mode.LINEARS)],
)
def test_auto_takes_the_mode_that_pays(figures: str, mode: Mode) -> None:
    namespace = arguments.parse(f"{TINY} --train-iters 1 {LARGE} {figures}".split(), [FbdPlugin])[1]

    assert Plan.of(namespace, 8).partition.mode is mode


def test_auto_refuses_what_does_not_pay_with_the_figures() -> None:
    with pytest.raises(
        UsageError, match=r"does not pay here: 0\.\d+ times as fast as no recompute: forward devices take"
    ):
        prepared(f"{LARGE} --fbd-forward-speed 0.05", 8)


@pytest.mark.parametrize(("more", "pays"), [("--fbd-forward-speed 0.05", False), ("--fbd-memory-gib 40", True)])
def test_a_mode_that_is_asked_for_runs_with_the_figures_where_it_does_not_pay(more: str, pays: bool) -> None:
    flags = f"{TINY} --train-iters 1 {LARGE} --fbd-mode input {more}"
    namespace = arguments.parse(flags.split(), [FbdPlugin])[1]

    plan = Plan.of(namespace, 8)

    assert plan.partition.mode is Mode.INPUT
    assert bool(doubts(namespace, plan)) is not pays


def test_checkpoints_are_the_backward_ranks_alone() -> None:
    forward, backward = (prepared(f"{ASKED} --save here", 4, rank) for rank in range(2))

    assert (backward.config.checkpoint.save, backward.environment.checkpoint_dir) == ("here", "/checkpoints")
    assert (forward.config.checkpoint.save, forward.environment.checkpoint_dir) == (None, "")


@pytest.mark.parametrize(
    ("flags", "ranks"),
    [
        (ASKED, 4),
        (f"{ASKED} --global-batch-size 16", 8),
        (TWO, 8),
        (f"{TWO} {ONE}", 6),
        (f"{TWO} {ONE} --forward-pipeline-model-parallel-size 1", 5),
        (f"{ASKED} --forward-tensor-model-parallel-size 2", 6),
        (f"{ASKED} {ONE}", 4),
        (f"{ASKED} --context-parallel-size 2", 8),
        (LINEARS, 2),
        (f"{LINEARS} --tensor-model-parallel-size 2 --forward-pipeline-model-parallel-size 2", 6),
        ("--forward-backward-disaggregating --fbd-mode layers", 2),
        (f"--forward-backward-disaggregating --fbd-mode layers --tensor-model-parallel-size 2 {ONE}", 3),
    ],
)
def test_the_documented_numbers_of_ranks_start(flags: str, ranks: int) -> None:
    places = [prepared(flags, ranks, rank) for rank in range(ranks)]

    assert {each.role for each in places} == {"forward", "backward"}
    assert sum({each.role: each.layout.ranks for each in places}.values()) == ranks


@pytest.mark.parametrize(
    ("flags", "ranks", "said"),
    [
        (ASKED, 6, "an odd number: start 4 or 8 ranks"),
        (f"{TWO} {ONE}", 8, "start 6 or 12 ranks"),
        ("--forward-backward-disaggregating", 2, "--pipeline-model-parallel-size 2 or more"),
        (f"{TWO} --forward-tensor-model-parallel-size 3", 10, "neither divides --tensor-model-parallel-size 2"),
        (f"{ASKED} --forward-tensor-model-parallel-size 8", 18, "4 attention heads in 4 groups can't be split over 8"),
        (f"{FOUR} --ffn-hidden-size 6", 6, "--ffn-hidden-size 6 can't be split over 4 .* a multiple of 4"),
        (f"{FOUR} --make-vocab-size-divisible-by 3", 6, "make --make-vocab-size-divisible-by a multiple of 4"),
        (
            f"{FOUR} --padded-vocab-size 258",
            6,
            "padded to a multiple of 258 .* make --padded-vocab-size a multiple of 4",
        ),
        (
            f"{TWO} --forward-tensor-model-parallel-size 4 --context-parallel-size 2 --sequence-parallel "
            "--seq-length 20",
            24,
            "10 tokens of a sequence can't be split over 4 .* change --seq-length",
        ),
        (f"{TWO} {ONE} --forward-tensor-model-parallel-size 2", 8, "means --forward-tensor-model-parallel-size 1"),
        (f"{TWO} {ONE} --attention-dropout 0.1", 6, "attention dropout .* give --attention-dropout 0"),
        (f"{TWO} {ONE} --sequence-parallel --hidden-dropout 0.1", 6, "hidden dropout under --sequence-parallel"),
        (f"{ASKED} --forward-pipeline-model-parallel-size 0", 4, "must be 1 or more"),
        (f"{ASKED} --forward-pipeline-model-parallel-size 3", 5, "--forward-pipeline-model-parallel-size 2 or less"),
        (f"{ASKED} --use-dpp", 4, "can't run with --use-dpp"),
        (f"{ASKED} --fbd-slots 0", 4, "give 1 or more"),
        (f"{LARGE} --fbd-slots 0", 8, "give 1 or more"),
        (f"{ASKED} --fbd-tflops 0", 4, "--fbd-tflops 0 must be a number above 0"),
        (f"{ASKED} --fbd-link-gbps nan", 4, "--fbd-link-gbps nan must be"),
        (f"{ASKED} --fbd-forward-speed inf", 4, "--fbd-forward-speed inf must be"),
        ("--fbd-memory-gib 80", 2, "--fbd-memory-gib does nothing without --forward-backward-disaggregating"),
        (
            "--forward-backward-disaggregating --pipeline-model-parallel-size 4 --num-layers 8 "
            "--num-virtual-stages-per-pipeline-rank 2 --fbd-slots 1",
            8,
            "give 2 or more",
        ),
        (f"{LINEARS} --tensor-model-parallel-size 2 {ONE}", 3, "needs 2 forward tensor ranks, as many as backward"),
        (f"{ASKED} --fbd-mode auto --num-experts 2 --disable-bias-linear", 4, "can't plan experts"),
        (f"{LINEARS} --num-experts 2 --disable-bias-linear", 2, "can't run experts"),
        (f"{LINEARS} --recompute-granularity selective", 2, "leaves nothing for --recompute-granularity"),
        (f"{LINEARS} --transformer-impl transformer_engine", 2, "give --transformer-impl local"),
        (f"{ASKED} --fbd-mode layers --hidden-dropout 0.1", 4, "can't draw a layer's dropout alone"),
        (f"{ASKED} --fbd-mode layers --num-experts 2 --disable-bias-linear", 4, "can't run experts"),
        (f"{ASKED} --fbd-mode layers --recompute-granularity selective", 4, "leaves nothing for"),
        (f"{ASKED} --fbd-mode layers --transformer-impl transformer_engine", 4, "give --transformer-impl local"),
        (f"{LINEARS} --num-layers 257", 2, "runs 256 layers at most"),
        (f"{LINEARS} --forward-pipeline-model-parallel-size 5", 6, "runs 4 of the 4 layers, too few for 5 stages"),
        ("--fbd-mode input", 2, "does nothing without --forward-backward-disaggregating"),
        (
            f"{ASKED} --use-distributed-optimizer --overlap-grad-reduce --overlap-param-gather",
            4,
            "leave that out",
        ),
        (f"{LINEARS} --reset-attention-mask", 2, "can't tell documents apart"),
        (f"{LINEARS} --variable-seq-lengths", 2, "leave --variable-seq-lengths out"),
        (f"{TWO} --group-query-attention --num-query-groups 1", 8, "can't share 1 query groups among 2 tensor ranks"),
        (ONE, 2, "does nothing without --forward-backward-disaggregating"),
        ("--fbd-roles-apart", 2, "does nothing without --forward-backward-disaggregating"),
        ("--fbd-forward-on-cpus", 2, "does nothing without --forward-backward-disaggregating"),
        (f"{ASKED} --fbd-forward-on-cpus --hidden-dropout 0.1", 4, "can't draw dropout as GPUs do"),
        (f"{ASKED} --fbd-forward-on-cpus --transformer-impl transformer_engine", 4, "--transformer-impl local"),
        ("--fbd-slots 4", 2, "does nothing without --forward-backward-disaggregating"),
    ],
)
def test_what_does_not_fit_is_refused_in_one_line(flags: str, ranks: int, said: str) -> None:
    with pytest.raises(UsageError, match=said) as raised:
        prepared(flags, ranks)
    assert "\n" not in str(raised.value)


def test_hidden_dropout_is_the_same_on_any_number_of_tensor_ranks_without_sequence_parallelism() -> None:
    assert prepared(f"{TWO} {ONE} --hidden-dropout 0.1", 6).role == "forward"


@pytest.mark.parametrize("vocabulary", ["--padded-vocab-size 257", "--make-vocab-size-divisible-by 3"])
def test_both_worlds_hold_the_vocabulary_as_the_backward_one_pads_it(vocabulary: str) -> None:
    both = [prepared(f"{TWO} {ONE} {vocabulary}", 6, rank) for rank in range(2)]

    assert [each.role for each in both] == ["forward", "backward"]
    assert [padded_vocabulary(256, each.config.model, each.layout) for each in both] == [258, 258]
