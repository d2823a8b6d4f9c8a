"""BERT and T5: every layout trains the same model, checkpoints change layouts, traces tell the layers, and a slow rank
is found."""

from __future__ import annotations

from collections import Counter
from functools import cache
from pathlib import Path

import pytest

from megatronapp.core.trace import file as trace_file
from megatronapp.detector.analyze import analyze
from megatronapp.trainer import launch  # noqa: F401  (imported once, before the ranks are forked)
from megatronapp.trainer.plugins.dpp import DppPlugin
from megatronapp.trainer.plugins.faults import FaultsPlugin
from megatronapp.trainer.plugins.scan import ScanPlugin
from tests.integration.trainer.plugins.scan.traced import RankTrace, read, run_traced
from tests.support.families import flags_of, sentences
from tests.support.forked import RankFailedError, run_forked
from tests.support.marks import some, some_of_several
from tests.support.training import train

pytestmark = pytest.mark.timeout(600)
PATIENCE_SECONDS = 280.0
STEPS = 20
FEW = 4
RELATIVE = 1e-5
slower = pytest.mark.long

TP2 = "--tensor-model-parallel-size 2"
PP2 = "--pipeline-model-parallel-size 2"
SHARDED = "--use-distributed-optimizer"
LAYOUTS = [
    ("bert", 2, TP2),
    ("bert", 2, PP2),
    ("bert", 2, f"{TP2} --sequence-parallel"),
    ("bert", 4, f"{TP2} {PP2} --sequence-parallel"),
    ("bert", 2, SHARDED),
    ("bert", 2, f"{PP2} --num-layers-per-virtual-pipeline-stage 1"),
    ("bert", 2, f"{PP2} --use-dpp --dpp-policy interleaved-zb"),
    ("t5", 2, TP2),
    ("t5", 2, f"{TP2} --sequence-parallel"),
    ("t5", 2, SHARDED),
    ("t5", 4, f"{TP2} {SHARDED}"),
]


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> str:
    return sentences(tmp_path_factory.mktemp("data"))


def losses(family: str, data: str, flags: str, world_size: int = 1, plugins: tuple[type, ...] = ()) -> list[float]:
    arguments = f"{flags_of(family, data)} {flags}"
    return run_forked(world_size, trained, arguments, plugins, timeout=PATIENCE_SECONDS)[-1]


def trained(flags: str, plugins: tuple[type, ...]) -> list[float]:
    return train(flags, plugins=plugins).losses


@cache
def single(family: str, data: str, flags: str) -> list[float]:
    return losses(family, data, flags)


def in_ci(case: tuple[str, int, str]) -> bool:
    return case[1] == 4 or "--use-dpp" in case[2]


@slower
@pytest.mark.parametrize(("family", "world_size", "layout"), some_of_several(LAYOUTS, in_ci))
def test_layout_has_the_losses_of_one_process(family: str, world_size: int, layout: str, data: str) -> None:
    steps = f"--train-iters {STEPS}"
    expected = single(family, data, steps)

    found = losses(family, data, f"{steps} {layout}", world_size, (DppPlugin,) if "--use-dpp" in layout else ())

    assert len(found) == STEPS
    assert found == pytest.approx(expected, rel=RELATIVE)
    assert found[-1] < found[0]


@pytest.mark.parametrize(("family", "step"), [("bert", "SameBert"), pytest.param("t5", "SameT5", marks=slower)])
def test_a_step_of_ones_own_with_the_built_in_loss_is_equal_bit_by_bit(family: str, step: str, data: str) -> None:
    steps = f"--train-iters {FEW}"

    assert losses(family, data, f"{steps} --train-step tests.support.own_steps:{step}") == single(family, data, steps)


@pytest.mark.parametrize(("family", "layout"), [("bert", PP2), ("t5", TP2)])
def test_two_ranks_begin_as_one_does(family: str, layout: str, data: str) -> None:
    steps = f"--train-iters {FEW}"

    assert losses(family, data, f"{steps} {layout}", 2) == pytest.approx(single(family, data, steps), rel=RELATIVE)


@slower
@pytest.mark.parametrize(
    "flags",
    [
        "--bert-no-binary-head --untie-embeddings-and-output-weights",
        "--position-embedding-type rope --normalization RMSNorm --swiglu",
        "--recompute-granularity full --recompute-method uniform --recompute-num-layers 1",
    ],
)
@pytest.mark.parametrize("family", some(["bert", "t5"], lambda family: family == "t5"))
def test_other_shapes_are_the_same_in_two_parts(family: str, flags: str, data: str) -> None:
    steps = f"--train-iters {FEW} {flags}"

    assert losses(family, data, f"{steps} {TP2}", 2) == pytest.approx(single(family, data, steps), rel=RELATIVE)


@pytest.mark.parametrize("family", [pytest.param("bert", marks=slower), "t5"])
@pytest.mark.parametrize("backend", ["flash", pytest.param("unfused", marks=slower)])
def test_our_attention_learns_as_megatron_cores(family: str, backend: str, data: str) -> None:
    steps = f"--train-iters {FEW}"

    found = losses(family, data, f"{steps} --attention-backend {backend}")

    assert found == pytest.approx(single(family, data, steps), rel=RELATIVE)


@slower
@pytest.mark.parametrize(("world_size", "layout"), [(2, f"{TP2} --sequence-parallel"), (2, TP2), (2, SHARDED)])
def test_t5s_biases_are_learned_alike_in_every_layout(world_size: int, layout: str, data: str) -> None:
    steps = f"--train-iters {FEW} --position-embedding-type relative"

    found = losses("t5", data, f"{steps} {layout}", world_size)

    assert found == pytest.approx(single("t5", data, steps), rel=RELATIVE)
    assert found != single("t5", data, f"--train-iters {FEW}")


@slower
def test_t5s_biases_are_saved_and_go_on_in_another_layout(data: str, tmp_path: Path) -> None:
    relative = "--position-embedding-type relative"
    losses("t5", data, f"--train-iters 2 {relative} --save {tmp_path}", 2)

    resumed = losses("t5", data, f"--train-iters 4 {relative} {TP2} --save {tmp_path}", 2)

    assert resumed == pytest.approx(single("t5", data, f"--train-iters 4 {relative}")[2:], rel=RELATIVE)


@slower
@pytest.mark.parametrize(("family", "layout"), [("bert", PP2), ("t5", SHARDED)])
def test_a_resumed_run_has_exactly_the_losses_of_an_uninterrupted_one(
    family: str, layout: str, data: str, tmp_path: Path
) -> None:
    flags = f"{layout} --hidden-dropout 0.1 --attention-dropout 0.1"
    uninterrupted = losses(family, data, f"--train-iters 6 {flags}", 2)
    losses(family, data, f"--train-iters 3 {flags} --save {tmp_path}", 2)

    resumed = losses(family, data, f"--train-iters 6 {flags} --save {tmp_path}", 2)

    assert resumed == uninterrupted[3:]


@slower
@pytest.mark.parametrize(("family", "saved", "loaded"), [("bert", TP2, PP2), ("t5", "", TP2)])
def test_a_checkpoint_goes_on_in_another_layout(
    family: str, saved: str, loaded: str, data: str, tmp_path: Path
) -> None:
    losses(family, data, f"--train-iters 3 {saved} --save {tmp_path}", 2)

    resumed = losses(family, data, f"--train-iters 6 {loaded} --save {tmp_path}", 2)

    assert resumed == pytest.approx(single(family, data, "--train-iters 6")[3:], rel=RELATIVE)


@slower
def test_a_checkpoint_of_another_family_is_refused(data: str, tmp_path: Path) -> None:
    losses("bert", data, f"--train-iters 1 --save {tmp_path}")

    with pytest.raises(RankFailedError, match="was saved with --model-type bert, not gpt"):
        losses("bert", data, f"--train-iters 2 --save {tmp_path} --model-type gpt")


def traced(folder: Path, family: str, data: str, layout: str) -> list[RankTrace]:
    """Two ranks' traces of two steps, the first one in full."""
    scan = f"--trace --trace-dir {folder} --trace-interval 2 --continuous-trace-iterations 1"
    arguments = f"{flags_of(family, data)} --train-iters 2 {layout} {scan}"
    run_traced(2, trained, arguments, (ScanPlugin,), timeout=PATIENCE_SECONDS)
    return [read(trace_file.path_for(folder, "local/train", 1, rank)) for rank in range(2)]


@slower
def test_layers_of_a_bert_are_traced_on_each_stage(data: str, tmp_path: Path) -> None:
    ranks = traced(tmp_path, "bert", data, PP2)

    for rank, layers in zip(ranks, ((1, 2), (3, 4)), strict=True):
        for name in ("layer_forward", "layer_backward", "qkv", "core_attention"):
            found = Counter((span.microbatch, span.layer) for span in rank.of(name))
            assert found == {(microbatch, layer): 1 for microbatch in range(4) for layer in layers}, name
        assert {(span.tokens, span.length_squares) for span in rank.of("forward")} == {(2 * 32, 2 * 32**2)}


@slower
def test_layers_of_a_t5_are_numbered_through_from_the_encoder_to_the_decoder(data: str, tmp_path: Path) -> None:
    for rank in traced(tmp_path, "t5", data, TP2):
        microbatches = range(4)
        for name in ("layer_forward", "layer_backward"):
            found = Counter((span.microbatch, span.layer) for span in rank.of(name))
            assert found == {(microbatch, layer): 1 for microbatch in microbatches for layer in range(1, 7)}, name
        attentions = Counter(span.layer for span in rank.of("core_attention"))
        assert attentions == {1: 4, 2: 4, 3: 4, 4: 4, 5: 8, 6: 8}
        assert Counter(rank_span.microbatch for rank_span in rank.of("embedding")) == dict.fromkeys(microbatches, 2)
        assert {(span.tokens, span.length_squares) for span in rank.of("forward")} == {
            (2 * (32 + 16), 2 * (32**2 + 16**2 + 16 * 32))
        }


@slower
@pytest.mark.parametrize("family", some(["bert", "t5"], lambda family: family == "bert"))
def test_a_slow_rank_is_named(family: str, data: str, tmp_path: Path) -> None:
    scenario = tmp_path / "scenario.yaml"
    scenario.write_text("faults:\n  - {kind: slow_compute, ranks: [1], from_step: 31, effect_ratio: 3}\n")
    flags = f"--train-iters 120 --log-interval 40 --trace --trace-dir {tmp_path} --fault-scenario {scenario}"

    run_traced(4, trained, f"{flags_of(family, data)} {flags}", (ScanPlugin, FaultsPlugin), timeout=PATIENCE_SECONDS)

    paged = [finding for finding in analyze(tmp_path / "local" / "train" / "attempt-1").findings if finding.page]
    assert [(str(finding.kind), list(finding.ranks)) for finding in paged] == [("slow_gpu", [1])]
