"""What tracing costs: step times with the scan plug-in off, at base and at full, in interleaved blocks of one run.

    python -m bench.trace_overhead                                   # one process, a small model
    torchrun --nproc-per-node 2 -m bench.trace_overhead --preset 1b --steps 200 --pipeline-model-parallel-size 2

Each round has one block of steps of each mode, in rotating order; the first step of a block, which pays for attaching
and detaching, is not counted. A round gives one paired difference of block medians to the block without the plug-in;
the result is their mean with its 95 % interval (Student's t). At base and full every step is traced in detail. Unknown
flags go to the trainer.
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
import sys
import tempfile
import time
import warnings
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Self

BLOCK = 10
SETTLING = 1
MODES = ("off", "base", "full")
PRESETS = {
    "tiny": "--num-layers 4 --hidden-size 64 --num-attention-heads 4 --seq-length 64 --micro-batch-size 2"
    " --global-batch-size 16",
    "1b": "--num-layers 24 --hidden-size 2048 --num-attention-heads 16 --group-query-attention --num-query-groups 4"
    " --ffn-hidden-size 5376 --seq-length 2048 --micro-batch-size 1 --global-batch-size 8 --bf16 --swiglu"
    " --normalization RMSNorm --position-embedding-type rope --disable-bias-linear"
    " --untie-embeddings-and-output-weights --vocab-size 32000 --tokenizer-type NullTokenizer",
    # As many parameters in fewer, wider layers: the GPU is the bottleneck, not the host that launches small kernels.
    "1b-wide": "--num-layers 8 --hidden-size 4096 --num-attention-heads 32 --group-query-attention --num-query-groups 8"
    " --ffn-hidden-size 10752 --seq-length 2048 --micro-batch-size 1 --global-batch-size 8 --bf16 --swiglu"
    " --normalization RMSNorm --position-embedding-type rope --disable-bias-linear"
    " --untie-embeddings-and-output-weights --vocab-size 32000 --tokenizer-type NullTokenizer",
}
COMMON = (
    "--mock-data --num-workers 0 --lr 1e-4 --lr-decay-style constant --eval-iters 0 --log-interval 1000000"
    " --hidden-dropout 0 --attention-dropout 0"
)
Z95 = statistics.NormalDist().inv_cdf(0.975)


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.trace_overhead", description=__doc__)
    parser.add_argument("--preset", choices=tuple(PRESETS), default="tiny")
    parser.add_argument("--steps", type=int, default=100, help="counted steps of each mode, in blocks of 10")
    options, flags = parser.parse_known_args(argv)
    warnings.filterwarnings("ignore")
    rounds = max(math.ceil(options.steps / BLOCK), 2)
    iterations = rounds * len(MODES) * (BLOCK + SETTLING) + 1
    report = run([*PRESETS[options.preset].split(), *COMMON.split(), *flags, f"--train-iters={iterations}"])
    if report is not None:
        print(json.dumps(report, indent=2), flush=True)
    return 0


def mode_of(step: int) -> tuple[str, int, bool]:
    """(mode, round, counted) of a step, which counts from 1."""
    block, position = divmod(step - 1, BLOCK + SETTLING)
    turn, place = divmod(block, len(MODES))
    return MODES[(place + turn) % len(MODES)], turn, position >= SETTLING


def run(flags: Sequence[str]) -> dict[str, Any] | None:
    """Train, switching the mode at block borders. The report is the first rank's."""
    import torch

    from megatronapp.trainer.launch import run as train
    from megatronapp.trainer.plugins.base import PluginContext
    from megatronapp.trainer.plugins.scan import ScanPlugin
    from megatronapp.trainer.plugins.scan.flags import ScanSettings
    from megatronapp.trainer.plugins.scan.window import Window
    from megatronapp.v1 import trace_pb2

    seconds: dict[tuple[str, int], list[float]] = defaultdict(list)
    facts: dict[str, Any] = {}

    class SwitchedScan(ScanPlugin):
        """The plug-in, off in a third of the blocks; times each step from its begin to the next one's."""

        _began = 0.0
        _mode = "off"

        @classmethod
        def create(cls, args: argparse.Namespace, context: PluginContext) -> Self:
            folder = Path(tempfile.mkdtemp(prefix="trace-overhead-"))
            facts.update(rank=context.identity.rank, device=_device(context.device), recorder="")
            plugin = cls(ScanSettings(Window(enabled=True, interval=1, continuous=1), folder, ""), context)
            facts["recorder"] = type(plugin._recorder).__name__
            facts["world"] = context.placement.sizes.world
            return plugin

        def models(self, chunks: Sequence[torch.nn.Module]) -> None:
            super().models(chunks)
            facts["parameters_on_rank"] = sum(p.numel() for chunk in chunks for p in chunk.parameters())

        def step_begin(self, step: int) -> None:
            now = time.perf_counter()
            mode, *_ = mode_of(step)
            if step > 1:
                before, before_turn, before_counted = mode_of(step - 1)
                if before_counted:
                    seconds[before, before_turn].append(now - self._began)
            self._began = now
            self._mode = mode
            if mode == "off":
                self.detach()
                return
            self.attach()
            granularity = trace_pb2.GRANULARITY_FULL if mode == "full" else trace_pb2.GRANULARITY_BASE
            self._control.request(trace_pb2.TraceControl(enabled=True, granularity=granularity))
            super().step_begin(step)

        def step_end(self, step: int, progress: trace_pb2.Progress | None) -> None:
            if self._mode != "off":
                super().step_end(step, progress)

        def close(self) -> None:
            facts["dropped"] = self._outbox.dropped
            super().close()

    train(flags, plugins=[SwitchedScan])
    return summary(seconds, facts) if facts.pop("rank") == 0 else None


def summary(seconds: dict[tuple[str, int], list[float]], facts: dict[str, Any]) -> dict[str, Any]:
    rounds = sorted({turn for _, turn in seconds})
    medians = {key: statistics.median(values) for key, values in seconds.items()}
    base_line = statistics.mean(medians["off", turn] for turn in rounds)
    report: dict[str, Any] = {**facts, "step_seconds_off": round(base_line, 6)}
    for mode in MODES[1:]:
        differences = [(medians[mode, turn] - medians["off", turn]) / base_line for turn in rounds]
        mean, half = interval95(differences)
        report[mode] = {
            "overhead_ratio": round(mean, 5),
            "interval_95": [round(mean - half, 5), round(mean + half, 5)],
            "steps": sum(len(seconds[mode, turn]) for turn in rounds),
        }
    return report


def interval95(values: Sequence[float]) -> tuple[float, float]:
    """Mean and half width; Student's quantile from the normal one by the first terms of its expansion in 1/n."""
    n = len(values) - 1
    t = Z95 + (Z95**3 + Z95) / (4 * n) + (5 * Z95**5 + 16 * Z95**3 + 3 * Z95) / (96 * n * n)
    return statistics.mean(values), t * statistics.stdev(values) / math.sqrt(len(values))


def _device(device: Any) -> str:
    import torch

    return torch.cuda.get_device_name(device) if device.type == "cuda" else "cpu"


if __name__ == "__main__":
    sys.exit(main())
