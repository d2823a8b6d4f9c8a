"""A Llama-like model of 1.2 B in bfloat16 on two GPUs, fused and not; experts by alltoall; sequences shared by two.

Prints a JSON object a run, with its losses and the median time of its steps (`-s`). Rehearsed on CPU ranks (devices.py)
the models are tiny, and experts get their tokens by allgather.
"""

from __future__ import annotations

import json
import os
import re
import statistics
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest
import torch

from bench._model import COMMON, PRESETS
from tests.gpu.devices import DEVICE, REHEARSED, needs
from tests.gpu.test_attach import stand_in_tools
from tests.gpu.worlds import Worlds
from tests.support.attached import run as run_script
from tests.support.pretrain import FLAGS
from tests.support.training import TINY, train

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.timeout(150),
    needs(2),
]
on_gpus = pytest.mark.skipif(bool(REHEARSED), reason="CPU ranks show nothing of this")

STEPS, SETTLING = 10, 4
TINY_LLAMA = f"{PRESETS['tiny']} --bf16 --swiglu --normalization RMSNorm --disable-bias-linear"
LLAMA = f"{TINY_LLAMA if REHEARSED else PRESETS['1b']} {COMMON} --log-interval 1 --train-iters {STEPS}"
SMALL = f"{TINY} --train-iters 20"
DATA = "--use-distributed-optimizer"
FUSIONS = "--fusions megatron cross-entropy"
ROTARY = (
    "--position-embedding-type rope --normalization RMSNorm --swiglu --disable-bias-linear "
    "--group-query-attention --num-query-groups 2"
)
DOCUMENTS = "--position-embedding-type alibi --reset-attention-mask --reset-position-ids --eod-mask-loss"
DISPATCHER = "allgather" if REHEARSED else "alltoall"
MIXTURE = f"--num-experts 4 --moe-router-topk 2 --disable-bias-linear --moe-token-dispatcher-type {DISPATCHER}"
EXPERTS, GROUPED = "--expert-model-parallel-size 2", "--moe-grouped-gemm"
ITERATION_MS = re.compile(r"elapsed time per iteration \(ms\): (\S+)")

Run = tuple[tuple[float, ...], float]
"""Losses, and the median of the settled steps' milliseconds."""


WORLDS = Worlds()


@pytest.fixture(scope="module", autouse=True)
def _worlds_end() -> Iterator[None]:
    yield
    WORLDS.close()


@cache
def run(flags: str, world_size: int = 2) -> Run:
    losses, seconds = WORLDS.call(world_size, _train, flags)[-1]
    return _told(flags, world_size, losses, [1000 * each for each in seconds])


def _train(flags: str) -> tuple[list[float], list[float]]:
    recording = train(flags)
    return recording.losses, [report.step_seconds for report in recording.steps]


def _told(what: str, world_size: int, losses: list[float], milliseconds: list[float]) -> Run:
    usual = round(statistics.median(milliseconds[SETTLING:]), 1)
    device = torch.cuda.get_device_name(0) if torch.cuda.is_available() else "cpu"
    row = {"run": what, "gpus": world_size, "device": device, "step_ms": usual, "losses": losses}
    print(json.dumps(row), flush=True)
    return tuple(losses), usual


# ---- 1.2 B, bfloat16


def test_the_model_learns_in_bfloat16() -> None:
    losses, _ = run(f"{LLAMA} {DATA}")

    assert len(losses) == STEPS
    assert losses[-1] < losses[0]


@pytest.mark.parametrize(
    "layout", ["--pipeline-model-parallel-size 2", "--tensor-model-parallel-size 2 --sequence-parallel"]
)
def test_layouts_learn_alike(layout: str) -> None:
    assert run(f"{LLAMA} {layout}")[0] == pytest.approx(run(f"{LLAMA} {DATA}")[0], rel=2e-2)


def test_fused_it_learns_alike() -> None:
    fused, unfused = run(f"{LLAMA} {DATA} {FUSIONS}"), run(f"{LLAMA} {DATA}")

    print(json.dumps({"fusions_gain_ms": round(unfused[1] - fused[1], 1), "jit": not jit_is_off()}), flush=True)
    assert fused[0] == pytest.approx(unfused[0], rel=2e-2)


def jit_is_off() -> bool:
    """Fused kernels are then computed one operation after the other."""
    return os.environ.get("TORCHDYNAMO_DISABLE") == "1"


def test_many_small_experts_in_one_kernel_learn_alike() -> None:
    model = f"{LLAMA} --num-layers 8 {MIXTURE} --num-experts 32 --moe-router-topk 4 --moe-ffn-hidden-size 1024"
    grouped, one_by_one = (run(f"{model} {layout} {EXPERTS} {DATA}") for layout in (GROUPED, ""))

    print(json.dumps({"grouped_gemm_gain_ms": round(one_by_one[1] - grouped[1], 1)}), flush=True)
    assert grouped[0] == pytest.approx(one_by_one[0], rel=2e-2)


# ---- float32


@pytest.mark.parametrize(
    ("model", "layout"),
    [
        (MIXTURE, "--expert-model-parallel-size 2"),
        (MIXTURE, f"--expert-model-parallel-size 2 {DATA}"),
        (f"{MIXTURE} --moe-shared-expert-intermediate-size 64", "--expert-model-parallel-size 2"),
    ],
)
def test_experts_that_get_their_tokens_by_alltoall_have_the_losses_of_one_gpu(model: str, layout: str) -> None:
    assert run(f"{SMALL} {model} {layout}")[0] == pytest.approx(run(f"{SMALL} {model}", 1)[0], rel=1e-5)


@pytest.mark.parametrize(("precision", "tolerance"), [("", 1e-5), ("--bf16", 1e-2)])
@pytest.mark.parametrize("layout", [EXPERTS, f"{EXPERTS} {DATA}", "--tensor-model-parallel-size 2 --sequence-parallel"])
def test_experts_in_one_kernel_have_the_losses_of_a_product_each(layout: str, precision: str, tolerance: float) -> None:
    flags = f"{SMALL} {MIXTURE} {precision} {layout}"

    assert run(f"{flags} {GROUPED}")[0] == pytest.approx(run(flags)[0], rel=tolerance)


def test_one_kernel_for_several_matrices_has_their_products_and_gradients() -> None:
    """One of them without rows."""
    [differences] = WORLDS.call(1, _grouped_against_one_by_one)

    assert max(differences.values()) < 1e-2, differences


def _grouped_against_one_by_one() -> dict[str, float]:
    """For a rank: of each, how far apart it is at most, relative to the largest value."""
    from megatronapp.trainer.models.grouped_experts import GroupedProduct

    counts, tensors = [37, 0, 5, 86], torch.randn(128 + 4 * 192, 64, device=DEVICE, dtype=torch.bfloat16)
    leaves = [[part.clone().requires_grad_() for part in tensors.split([128, *[192] * 4])] for _ in range(2)]
    (rows, *weights), (plain_rows, *plain_weights) = leaves
    output = GroupedProduct.apply(rows, counts, *weights)
    parts = zip(plain_rows.split(counts), plain_weights, strict=True)
    plain = torch.cat([part @ weight.t() for part, weight in parts])
    for each in (output, plain):
        each.backward(torch.ones_like(each))
    pairs = {"output": (output, plain), "rows": (rows.grad, plain_rows.grad)}
    pairs |= {f"weight {n}": (weights[n].grad, plain_weights[n].grad) for n in range(4)}
    return {name: float((a - b).abs().max() / b.abs().max().clamp(min=1)) for name, (a, b) in pairs.items()}


def test_activations_that_wait_on_the_host_change_no_loss() -> None:
    dropout = f"{SMALL} --hidden-dropout 0.1 --attention-dropout 0.1"

    assert run(f"{dropout} --cpu-offloading-num-layers 3", 1)[0] == run(dropout, 1)[0]


@pytest.mark.parametrize("flags", ["", "--optimizer-offload-fraction 0.5", f"--bf16 {DATA}"])
def test_an_optimizer_on_the_host_changes_no_loss(flags: str) -> None:
    on_the_host = run(f"{SMALL} {flags} --optimizer-cpu-offload")[0]

    assert on_the_host == pytest.approx(run(f"{SMALL} {flags}")[0], rel=1e-3 if "--bf16" in flags else 1e-5)


def test_a_run_with_its_optimizer_on_the_host_goes_on_where_it_ended(tmp_path: Path) -> None:
    flags = f"{SMALL} --bf16 {DATA} --optimizer-cpu-offload"
    whole = run(flags)[0]

    run(f"{flags} --exit-interval 10 --save {tmp_path}")
    resumed = run(f"{flags} --save {tmp_path}")[0]

    assert resumed == whole[10:]


@on_gpus
def test_an_optimizer_on_the_host_leaves_its_memory_to_the_gpu() -> None:
    flags = f"{LLAMA} --train-iters 2 {DATA}"  # from the second step on the moments are there all the time

    with_it, without = (WORLDS.call(2, _peak, f"{flags} {more}")[0] for more in ("", "--optimizer-cpu-offload"))

    print(json.dumps({"peak_gb": round(with_it / 1e9, 2), "optimizer_on_the_host_gb": round(without / 1e9, 2)}))
    assert with_it - without > 0.9 * 8 * 1.2e9 / 2, "of 1.2 B weights two moments each, shared by two ranks"


def _peak(flags: str) -> int:
    torch.cuda.reset_peak_memory_stats()
    train(flags)
    return torch.cuda.max_memory_allocated()


@pytest.mark.parametrize("model", [ROTARY, DOCUMENTS])
def test_a_shared_sequence_has_the_losses_of_one_gpu(model: str) -> None:
    shared = run(f"{SMALL} {model} --context-parallel-size 2")

    assert shared[0] == pytest.approx(run(f"{SMALL} {model}", 1)[0], rel=1e-5)


# ---- beside Megatron-LM


@on_gpus
def test_a_step_takes_about_as_long_as_megatron_lms_own(shared_data: Path, tmp_path: Path) -> None:
    theirs = megatron_lm(shared_data / "megatron_lm", tmp_path)
    ours = run(f"{LLAMA} {DATA}")[1]

    print(json.dumps({"megatron_lm_ms": theirs, "ours_ms": ours, "ratio": round(ours / theirs, 3)}), flush=True)
    assert ours < 1.15 * theirs


def megatron_lm(folder: Path, scratch: Path) -> float:
    """Of `pretrain_gpt.py` with the same flags, without Transformer Engine, Apex and fusions."""
    script, variables = folder / "pretrain_gpt.py", environment(folder, scratch)
    ended = run_script(script, *megatron_lm_flags(scratch), environment=variables, timeout=100)
    times = [float(each) for each in ITERATION_MS.findall(ended.output)]
    assert (ended.code, len(times)) == (0, STEPS), ended.output[-6000:]
    return _told("Megatron-LM", 2, [], times)[1]


def megatron_lm_flags(scratch: Path) -> list[str]:
    own = "--max-position-embeddings 2048 --eval-interval 1000 --eval-iters 1 --vocab-size 31999"
    return [*f"{FLAGS} {LLAMA} {DATA} {own}".replace("--vocab-size 32000", "").split(), f"--data-cache-path={scratch}"]


def environment(folder: Path, scratch: Path) -> dict[str, str]:
    tools = stand_in_tools(scratch)
    return {
        "PYTHONPATH": os.pathsep.join([str(folder), *filter(None, [os.environ.get("PYTHONPATH")])]),
        "PATH": os.pathsep.join([str(tools / "bin"), os.environ["PATH"]]),
        "CUDA_HOME": str(tools),
        "CUDA_DEVICE_MAX_CONNECTIONS": "1",
        "TORCHDYNAMO_DISABLE": "1",
    }
