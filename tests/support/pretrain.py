"""Megatron-LM's `pretrain_gpt.py`, of which no line is changed: its flags, and what it leaves.

Without Apex and Transformer Engine, on made-up data.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import torch

from tests.support.attached import Ended, run

FLAGS = (
    "--transformer-impl local --no-persist-layer-norm --no-gradient-accumulation-fusion --no-masked-softmax-fusion "
    "--no-bias-swiglu-fusion --no-bias-gelu-fusion --no-bias-dropout-fusion --no-rope-fusion "
    "--attention-backend unfused --mock-data --tokenizer-type NullTokenizer --vocab-size 255 --lr 1e-3 "
    "--lr-decay-style constant --eval-iters 1 --log-interval 1 --num-workers 0"
)
ON_CPU = Path(__file__).parent / "megatron_lm_on_cpu.py"
LAYOUTS = {
    "pipeline": "--pipeline-model-parallel-size 2",
    "tensor": "--tensor-model-parallel-size 2",
    "data": "--use-distributed-optimizer",
    "overlapped": "--use-distributed-optimizer --overlap-grad-reduce --overlap-param-gather",
}
"""Of two CPU ranks."""
TINY = (
    "--num-layers 4 --hidden-size 32 --num-attention-heads 4 --seq-length 16 --max-position-embeddings 16 "
    "--micro-batch-size 2 --global-batch-size 8 --eval-interval 4 --distributed-backend gloo"
)
SAVE_AT_THE_END = 1_000_000
LOGGED = re.compile(r"iteration +(\d+)/.*lm loss: (\S+) .*grad norm: (\S+) |(validation loss .*) \|")


def pretrain(
    data: Path, folder: Path, layout: str, steps: int, *, save_interval: int = SAVE_AT_THE_END, **options: Any
) -> Ended:
    """On CPU ranks, to its end; it leaves its weights in the folder. Options are those of `attached.run`."""
    command = [*script(data, folder, layout, steps), *saving(folder, save_interval)]
    return run(*command, **in_environment(data, options))


def script(data: Path, folder: Path, layout: str, steps: int) -> list[Any]:
    """It and its arguments, on CPU ranks."""
    given = f"{FLAGS} {TINY} {LAYOUTS[layout]} --train-iters {steps}".split()
    return [ON_CPU, data / "megatron_lm" / "pretrain_gpt.py", *given, f"--data-cache-path={folder / 'cache'}"]


def in_environment(data: Path, options: dict[str, Any]) -> dict[str, Any]:
    """Options of `attached.start`, with what the script needs of its environment."""
    needed = {"PYTHONPATH": str(data / "megatron_lm"), "CUDA_DEVICE_MAX_CONNECTIONS": "1"}
    return {**options, "environment": {**needed, **options.get("environment", {})}}


def logged(ended: Ended) -> list[tuple[str, ...]]:
    """(step, loss, norm of the gradient, evaluation), as it prints them."""
    return LOGGED.findall(ended.output)


def saving(folder: Path, interval: int = SAVE_AT_THE_END) -> list[str]:
    """Flags that leave the weights, exactly, after so many steps each and when it ends."""
    return [
        f"--save={folder}",
        f"--save-interval={interval}",
        "--ckpt-format=torch",
        "--no-save-optim",
        "--no-save-rng",
    ]


def weights(folder: Path) -> dict[str, torch.Tensor]:
    """By file, model chunk and name. Megatron-LM's modules must be importable: the file has its arguments."""
    return {
        f"{file.parent.name} {chunk} {name}": value
        for file in sorted(folder.glob("iter_*/mp_rank_*/model_optim_rng.pt"))
        for chunk, state in _saved(file).items()
        if chunk.startswith("model")
        for name, value in state.items()
        if isinstance(value, torch.Tensor)
    }


def _saved(file: Path) -> dict[str, Any]:
    saved: dict[str, Any] = torch.load(file, map_location="cpu", weights_only=False)
    return saved


def same_bits(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> bool:
    same = one.keys() == other.keys() and all(value.dtype == other[name].dtype for name, value in one.items())
    return same and all(
        torch.equal(value.contiguous().view(torch.uint8), other[name].contiguous().view(torch.uint8))
        for name, value in one.items()
    )
