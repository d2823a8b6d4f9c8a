"""Models of Transformer Engine's layers: they learn as megatron-core's own do, in every layout and in 8 bits; their
checkpoints resume; text is generated with them; MegaScope shows them; under MegaDPP and MegaFBD they train as under
megatron-core's schedule.

`pip install 'transformer-engine[pytorch]'`; without it these tests are skipped.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from functools import cache, partial
from pathlib import Path
from typing import ClassVar

import numpy as np
import pytest

from megatronapp.core.generation import GenerationRequest
from megatronapp.core.pipeline.operations import Kind
from megatronapp.core.scope.frame import unpack
from megatronapp.core.scope.results import of_frame
from megatronapp.core.trace.values import Progress
from megatronapp.trainer import launch  # noqa: F401  (imported once, before the ranks are forked)
from megatronapp.trainer.plugins.fbd import FbdPlugin
from megatronapp.trainer.plugins.fbd.plan import APART
from megatronapp.trainer.plugins.fbd.roles import Role
from megatronapp.trainer.plugins.scope.frames import FrameQueue
from megatronapp.trainer.plugins.scope.taps import Demand
from megatronapp.trainer.plugins.scope.watch import Tap, TapReader
from tests.gpu.devices import REHEARSED, needs
from tests.gpu.test_scope import LLAMA, MODELS, distance
from tests.gpu.worlds import Worlds
from tests.integration.trainer.generate.models import GREEDY, TEXTS, asked, ids
from tests.integration.trainer.plugins.scan.traced import train_traced
from tests.support.capturing import Look, Looker, Wanted, run_captured, whole
from tests.support.disaggregated import RECOMPUTE, Case
from tests.support.families import flags_of, sentences
from tests.support.forked import run_forked
from tests.support.plain_forward import plain_forward
from tests.support.training import TINY, train
from tests.support.varied_orders import STOCK, TRIAL_KINDS, TRIAL_STEPS, Counting, Trained, trained

pytest.importorskip("transformer_engine", reason="Transformer Engine is not installed")
pytestmark = [
    pytest.mark.gpu,
    pytest.mark.timeout(200),
    pytest.mark.skipif(bool(REHEARSED), reason="Transformer Engine's kernels are CUDA's"),
    needs(1),
]

STEPS = 20
THEIRS = "--transformer-impl transformer_engine"
SMALL = f"{TINY} --train-iters {STEPS}"
WIDE = "--hidden-size 256 --seq-length 128 --bf16"
"""Sizes that kernels of 16 and 8 bits take."""
MIXTURE = "--num-experts 4 --moe-router-topk 2 --disable-bias-linear --moe-token-dispatcher-type alltoall"
DETERMINISTIC = "--deterministic-mode --attention-backend unfused"
TWO_CHUNKS = "--pipeline-model-parallel-size 2 --num-virtual-stages-per-pipeline-rank 2"
ENVIRONMENT = {"NVIDIA_TF32_OVERRIDE": "0", "CUBLAS_WORKSPACE_CONFIG": ":4096:8", "NCCL_ALGO": "Ring"}
WORLDS = Worlds(ENVIRONMENT)


@pytest.fixture(scope="module", autouse=True)
def _worlds_end() -> Iterator[None]:
    yield
    WORLDS.close()


@cache
def losses(flags: str, world_size: int = 1) -> list[float]:
    found: list[float] = WORLDS.call(world_size, _losses, flags)[-1]
    print(json.dumps({"run": flags, "gpus": world_size, "losses": [round(each, 5) for each in found]}), flush=True)
    return found


def _losses(flags: str) -> list[float]:
    return train(flags).losses


# ---- losses


@pytest.mark.parametrize("model", ["", LLAMA, MIXTURE], ids=["GPT", "Llama", "experts"])
def test_losses_are_those_of_megatron_cores_own_layers(model: str) -> None:
    theirs, own = (losses(f"{SMALL} {model} {impl}") for impl in (THEIRS, ""))

    assert theirs == pytest.approx(own, rel=1e-3)
    assert len(theirs) == len(set(theirs)) == STEPS


@pytest.mark.parametrize("family", ["bert", "t5"])
def test_losses_of_the_other_families_are_those_of_megatron_cores_own_layers(family: str, tmp_path: Path) -> None:
    flags = f"{flags_of(family, sentences(tmp_path))} --train-iters {STEPS}"

    assert losses(f"{flags} {THEIRS}") == pytest.approx(losses(flags), rel=1e-3)


@needs(2)
@pytest.mark.parametrize(
    "layout",
    [
        "--tensor-model-parallel-size 2 --sequence-parallel",
        "--pipeline-model-parallel-size 2",
        TWO_CHUNKS,
        "--context-parallel-size 2 --position-embedding-type rope",
        "--use-distributed-optimizer --overlap-grad-reduce --overlap-param-gather",
        f"--expert-model-parallel-size 2 {MIXTURE}",
    ],
)
def test_layouts_learn_alike(layout: str) -> None:
    alone = MIXTURE if "experts" in layout else "--position-embedding-type rope" if "rope" in layout else ""

    spread = losses(f"{SMALL} {WIDE} {layout} {THEIRS}", 2)

    assert spread == pytest.approx(losses(f"{SMALL} {WIDE} {alone} {THEIRS}"), rel=2e-2)


@pytest.mark.parametrize("backend", ["auto", "fused", "unfused"])
def test_attention_of_each_backend_learns_alike(backend: str) -> None:
    flags = f"{SMALL} {WIDE} {LLAMA}"

    [(found, used)] = run_forked(1, _losses_and_backend, f"{flags} {THEIRS} --attention-backend {backend}")

    assert found == pytest.approx(losses(flags), rel=5e-2)
    assert used == {"fused" if backend == "auto" else backend}


def _losses_and_backend(flags: str) -> tuple[list[float], set[str]]:
    from transformer_engine.pytorch.attention.dot_product_attention import dot_product_attention as of_theirs

    found, chosen = _losses(flags), of_theirs._attention_backends
    return found, {name for name in ("flash", "fused", "unfused") if chosen.get(f"use_{name}_attention")}


@pytest.mark.parametrize("recipe", ["delayed", "tensorwise", "blockwise"])
@pytest.mark.parametrize("fp8", ["hybrid", "e4m3"])
def test_in_8_bits_it_learns_alike(fp8: str, recipe: str) -> None:
    flags = f"{SMALL} {WIDE} {LLAMA} {THEIRS}"

    assert losses(f"{flags} --fp8-format {fp8} --fp8-recipe {recipe}") == pytest.approx(losses(flags), abs=0.2)


# ---- checkpoints and generation


@pytest.mark.parametrize("more", ["", "--use-distributed-optimizer", "--fp8-format hybrid"])
def test_a_resumed_run_has_exactly_the_losses_of_an_uninterrupted_one(more: str, tmp_path: Path) -> None:
    flags = f"{SMALL} {WIDE} {DETERMINISTIC} {more} {THEIRS}"

    losses(f"{flags} --exit-interval 10 --save {tmp_path}")

    assert losses(f"{flags} --save {tmp_path}") == losses(flags)[10:]


@pytest.mark.parametrize(("first", "then"), [("", THEIRS), (THEIRS, "")], ids=["own to theirs", "theirs to own"])
def test_a_checkpoint_of_the_other_layers_goes_on(first: str, then: str, tmp_path: Path) -> None:
    flags = f"{SMALL} {LLAMA}"

    losses(f"{flags} {first} --exit-interval 10 --save {tmp_path}")

    assert losses(f"{flags} {then} --save {tmp_path}") == pytest.approx(losses(flags)[10:], rel=1e-3)


def test_text_that_is_generated_is_that_of_megatron_cores_own_layers(tmp_path: Path) -> None:
    requests = [
        GenerationRequest(prompts=TEXTS, id="greedy", max_new_tokens=8, sampling=GREEDY, stop_at_end_of_document=False)
    ]
    for folder, impl in (("own", ""), ("theirs", THEIRS)):
        losses(f"{SMALL} {LLAMA} --seq-length 64 --lr 1e-2 {impl} --save {tmp_path / folder}")

    own, theirs = (WORLDS.call(1, asked, tmp_path / each, requests, {})[0][0] for each in ("own", "theirs"))

    assert ids(theirs) == ids(own)


def test_a_model_that_was_trained_in_8_bits_generates_text(tmp_path: Path) -> None:
    request = GenerationRequest(prompts=TEXTS, max_new_tokens=8, sampling=GREEDY, stop_at_end_of_document=False)
    losses(f"{SMALL} {WIDE} {LLAMA} {THEIRS} --fp8-format hybrid --save {tmp_path}")

    [[events]] = WORLDS.call(1, asked, tmp_path, [request], {})

    assert {len(added) for added in ids(events).values()} == {8}


# ---- MegaScope and MegaScan


NORMS = {"self_attention.linear_qkv.layer_norm": "input_layernorm.", "mlp.linear_fc1.layer_norm": "pre_mlp_layernorm."}
"""Which are fused with the products behind them."""
VALUE_TOLERANCE = 1e-5
"""Of the largest |value|, in float32."""


@pytest.mark.parametrize("model", MODELS)
def test_each_site_is_that_of_a_plain_forward(model: str) -> None:
    flags, shape = MODELS[model]
    found: list[Look] = WORLDS.call(1, run_captured, f"{TINY} --train-iters 2 {flags} {THEIRS}", Wanted(("*",)))
    expected = plain_forward(np.concatenate(found[0].tokens[:4]), plainly_named(found[0]), shape, 4, device="cuda")

    worst = dict[str, float]()
    for (site, layer), values in expected.items():
        if site == "attn.result" or (site, layer, False) not in found[0].parts:
            continue
        worst[site] = max(worst.get(site, 0.0), distance(values, whole(found, (site, layer, False))))

    print({site: f"{far:.1e}" for site, far in worst.items()})
    assert {"attn.q", "attn.context", "attn.out", "mlp.act", "resid_post", "logits"} <= set(worst)
    assert {site: far for site, far in worst.items() if far >= VALUE_TOLERANCE} == {}


class Probabilities(Looker):
    """Those that are computed of queries and keys, of the last queries of a head, in the first step."""

    written: ClassVar[list[bytes]] = []

    def step_begin(self, step: int) -> None:
        self.queue = FrameQueue(lambda _, frame: self.written.append(bytes(frame)))
        reader = TapReader(
            Tap.parse({"id": 1, "expression": "layers[*].attn.probs | head(1) | last(5)"}, 0.0), self.queue
        )
        reader.due = True
        self.taps.set([(spot, Demand(readers=[reader.read])) for spot in self.taps.spots if spot.site == "attn.probs"])
        self.position.step, self.position.active = step, True

    def step_end(self, step: int, progress: Progress | None) -> None:
        super().step_end(step, progress)
        self.queue.flush()


def _probabilities(flags: str) -> tuple[list[bytes], Look]:
    Probabilities.found = Look()
    train(flags, plugins=(Probabilities,))
    return Probabilities.written, Probabilities.found


@pytest.mark.parametrize("model", MODELS)
def test_probabilities_that_are_computed_for_it_are_those_of_a_plain_softmax(model: str) -> None:
    flags, shape = MODELS[model]

    [(frames, look)] = run_forked(
        1, _probabilities, f"{TINY} --train-iters 1 {flags} {THEIRS}", environment=ENVIRONMENT
    )
    expected = plain_forward(np.concatenate(look.tokens), plainly_named(look), shape, 4, device="cuda")

    assert len(frames) == 4 * 4
    for frame in map(unpack, frames):
        found, rows = of_frame(frame), slice(2 * frame.microbatch, 2 * frame.microbatch + 2)
        shown = np.where(found.absent, 0, found.array).squeeze()
        np.testing.assert_allclose(shown, expected["attn.probs", frame.layer][rows, 1, -5:], atol=1e-6)


def plainly_named(look: Look) -> dict[str, np.ndarray]:
    named = dict(look.weights)
    for fused, plain in NORMS.items():
        for name in [each for each in named if fused in each]:
            layer, kind = name.partition(fused)[0], name.rpartition("_")[2]
            named[f"{layer}{plain}{kind}"] = named.pop(name)
    return named


def test_a_trace_has_the_spans_of_megatron_cores_own_layers(tmp_path: Path) -> None:
    own, theirs = (names(impl, tmp_path / name) for name, impl in (("own", ""), ("theirs", THEIRS)))

    assert own - theirs == set()


def names(impl: str, folder: Path) -> set[str]:
    [rank], _ = train_traced(folder, 1, impl)
    return {span.name for span in rank.spans}


# ---- MegaDPP and MegaFBD


@cache
def run(flags: str, *plugins: type) -> list[Trained]:
    model = f"{TINY} --num-layers 8 {WIDE} {DETERMINISTIC} {THEIRS}"
    found: list[Trained] = WORLDS.call(2, partial(trained, model=model, steps=TRIAL_STEPS), flags, *plugins)
    return found


@needs(2)
@pytest.mark.parametrize("more", ["", "--overlap-grad-reduce"])
@pytest.mark.parametrize(
    ("layout", "policy"),
    [
        ("--pipeline-model-parallel-size 2", "zb-h1"),
        ("--pipeline-model-parallel-size 2", "zb-h2"),
        (TWO_CHUNKS, "interleaved"),
        (TWO_CHUNKS, "interleaved-zb"),
        (TWO_CHUNKS, "depth-first"),
        (f"{TWO_CHUNKS} {LLAMA}", "interleaved-zb"),
    ],
)
def test_with_w_put_off_gradients_are_bitwise_stocks(layout: str, policy: str, more: str) -> None:
    stock = run(f"{layout} {more}")

    chosen = run(f"{layout} {more} --use-dpp --dpp-policy {policy}", Counting)

    assert [each.gradients for each in chosen] == [each.gradients for each in stock]
    assert chosen[-1].losses == stock[-1].losses
    assert len(set(stock[-1].losses)) == TRIAL_STEPS
    assert all(any(operation.kind is Kind.WGRAD for operation in order) for each in chosen for order in each.orders)


@needs(2)
@pytest.mark.parametrize("more", ["", "--use-distributed-optimizer --overlap-grad-reduce --overlap-param-gather"])
def test_auto_tries_all_in_turns_and_changes_no_bit(more: str) -> None:
    stock = run(f"{TWO_CHUNKS} {more}")

    auto = run(f"{TWO_CHUNKS} {more} --use-dpp", Counting)

    assert [each.gradients for each in auto] == [each.gradients for each in stock]
    assert auto[-1].losses == stock[-1].losses
    puts_off = [[any(each.kind is Kind.WGRAD for each in order) for order in rank.orders] for rank in auto]
    assert puts_off == [[kind != STOCK for kind in TRIAL_KINDS] * 2] * 2


@needs(2)
@pytest.mark.parametrize("recipe", ["tensorwise", "delayed"])
def test_in_8_bits_with_w_put_off_losses_are_bitwise_stocks(recipe: str) -> None:
    flags = f"{TWO_CHUNKS} --fp8-format hybrid --fp8-recipe {recipe}"

    stock, chosen = run(flags), run(f"{flags} --use-dpp --dpp-policy interleaved-zb", Counting)

    assert chosen[-1].losses == stock[-1].losses
    assert len(set(stock[-1].losses)) == TRIAL_STEPS


@needs(2)
def test_a_forward_rank_beside_a_pipeline_of_backward_ranks_trains_as_stock_does() -> None:
    case = Case(f"{WIDE} {DETERMINISTIC} {THEIRS} {APART}", forward_pipeline=1)
    stock = on_devices((0, 1), f"{case.layout.replace(APART, '')} {RECOMPUTE}")

    every = on_devices((0, 1, 0), case.asked, FbdPlugin)  # backward ranks, then the forward rank

    chosen = [every[rank] for rank in case.roles.ranks(Role.BACKWARD)]
    assert [each.gradients for each in chosen] == [each.gradients for each in stock]
    assert chosen[-1].losses == stock[-1].losses
    assert len(set(chosen[-1].losses)) == TRIAL_STEPS


def on_devices(devices: tuple[int, ...], flags: str, *plugins: type) -> list[Trained]:
    """By rank: each has the device that is named for it."""
    found: list[Trained] = WORLDS.call(len(devices), partial(_trained_on, devices), flags, *plugins)
    return found


def _trained_on(devices: tuple[int, ...], flags: str, *plugins: type) -> Trained:
    os.environ["LOCAL_RANK"] = str(devices[int(os.environ["RANK"])])
    return trained(flags, *plugins, steps=TRIAL_STEPS)
