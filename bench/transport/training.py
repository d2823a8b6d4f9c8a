"""Step times of a pipeline of two stages, over torch's own messages and over the native transport, in turns.

On two GPUs where there are two, with a model of 1.7 B parameters in a few wide layers, which keep the GPUs busy, so
that it is not the host's speed that is measured; else on the CPU with a small one.
"""

from __future__ import annotations

import os
import socket
import statistics
from dataclasses import dataclass
from multiprocessing import get_context
from multiprocessing.connection import Connection

import torch

from bench._model import COMMON, PRESETS

TRANSPORTS = ("torch", "native")
ROUNDS = 5
STEPS = 20
SETTLING = 5
PIPELINE = "--pipeline-model-parallel-size 2 --log-interval 1 --eval-iters 0 --num-workers 0"
SMALL = (
    "--num-layers 4 --hidden-size 128 --num-attention-heads 4 --seq-length 128 --micro-batch-size 1"
    " --global-batch-size 8 --lr 1e-4 --mock-data --tokenizer-type ByteTokenizer"
)
LAYOUTS = {"1F1B": PIPELINE, "interleaved": f"{PIPELINE} --num-layers-per-virtual-pipeline-stage"}


@dataclass(frozen=True)
class Run:
    step_seconds: list[float]
    losses: list[float]


class Recorder:
    """A reporter of the trainer."""

    def __init__(self) -> None:
        self.found = Run([], [])

    def step(self, report: object) -> None:
        self.found.step_seconds.append(report.step_seconds)  # type: ignore[attr-defined]
        self.found.losses.append(report.loss)  # type: ignore[attr-defined]

    def evaluation(self, report: object) -> None:
        pass

    def close(self) -> None:
        pass


def run_rank(rank: int, port: int, flags: list[str], result: Connection) -> None:
    torch.set_num_threads(1)
    place = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": 2, "LOCAL_WORLD_SIZE": 2, "MASTER_PORT": port}
    os.environ.update({name: str(value) for name, value in place.items()} | {"MASTER_ADDR": "127.0.0.1"})
    from megatronapp.trainer.launch import run

    recorder = Recorder()
    run(flags, reporters=[recorder], plugins=())
    result.send(recorder.found)


def train(flags: list[str]) -> Run:
    """What the last stage saw. Raises EOFError when a rank fails."""
    context = get_context("spawn")
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = int(probe.getsockname()[1])
    pipes = [context.Pipe(duplex=False) for _ in range(2)]
    ranks = [context.Process(target=run_rank, args=(r, port, flags, pipes[r][1])) for r in range(2)]
    for process, (_, sender) in zip(ranks, pipes, strict=True):
        process.start()
        sender.close()
    found: list[Run] = [receiver.recv() for receiver, _ in pipes]
    for process in ranks:
        process.join()
    return found[-1]


def report() -> None:
    on_gpus = torch.cuda.device_count() >= 2
    model = f"{PRESETS['1b-wide']} {COMMON}".split() if on_gpus else SMALL.split()
    layers_in_part = int(model[model.index("--num-layers") + 1]) // 4
    print(f"\nstep time on two {'GPUs' if on_gpus else 'CPU ranks'}, {ROUNDS} runs of {STEPS} steps each, in turns")
    for layout, base in LAYOUTS.items():
        flags = base.split() + ([str(layers_in_part)] if layout == "interleaved" else [])
        medians: dict[str, list[float]] = {transport: [] for transport in TRANSPORTS}
        losses: set[tuple[float, ...]] = set()
        for turn in range(ROUNDS):
            for transport in TRANSPORTS if turn % 2 == 0 else reversed(TRANSPORTS):
                run = train([*model, *flags, "--train-iters", str(STEPS), "--p2p-transport", transport])
                medians[transport].append(statistics.median(run.step_seconds[SETTLING:]))
                losses.add(tuple(run.losses))
        print_layout(layout, medians, equal=len(losses) == 1)


def print_layout(layout: str, medians: dict[str, list[float]], *, equal: bool) -> None:
    stock, native = (statistics.median(medians[transport]) for transport in TRANSPORTS)
    pairs = [b / a for a, b in zip(medians["torch"], medians["native"], strict=True)]
    print(
        f"{layout:12} torch {stock * 1e3:.1f} ms, native {native * 1e3:.1f} ms, "
        f"native / torch {statistics.median(pairs):.3f} ({min(pairs):.3f} to {max(pairs):.3f}); "
        f"losses {'equal bit for bit' if equal else 'DIFFER'}"
    )
