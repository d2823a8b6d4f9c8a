"""This trainer beside an earlier commit's, with flags that both know: `python -m bench.earlier`.

Losses of twenty steps are compared bit for bit, layout by layout; the time of a step in turns, each a run of its own.
The earlier version comes out of git and runs with this one's packages; by default it is the last one before BERT, T5,
fusions and attention of our own. Prints a JSON object a comparison, and exits with 1 where losses differ.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
RANK = Path(__file__).with_name("_earlier_rank.py")
COMMIT = "b3733fdb"
SHARED = (
    "--lr 1e-3 --lr-decay-style constant --mock-data --tokenizer-type ByteTokenizer --num-workers 0 --log-interval 1 "
    "--eval-iters 0"
)
SMALL = (
    f"{SHARED} --num-layers 4 --hidden-size 32 --num-attention-heads 4 --seq-length 16 --micro-batch-size 2 "
    "--global-batch-size 8 --train-iters 20"
)
TIMED = (
    f"{SHARED} --num-layers 4 --hidden-size 256 --num-attention-heads 8 --seq-length 128 --micro-batch-size 2 "
    "--global-batch-size 4 --train-iters 40"
)
SETTLING = 10
LLAMA = (
    "--position-embedding-type rope --normalization RMSNorm --swiglu --group-query-attention --num-query-groups 2 "
    "--untie-embeddings-and-output-weights --disable-bias-linear"
)
TENSOR, PIPELINE = "--tensor-model-parallel-size 2", "--pipeline-model-parallel-size 2"
LAYOUTS = [
    (1, ""),
    (1, "--hidden-dropout 0 --attention-dropout 0"),
    (1, "--bf16"),
    (1, LLAMA),
    (1, "--num-experts 4 --moe-router-topk 2 --disable-bias-linear"),
    (1, "--recompute-granularity full --recompute-method uniform --recompute-num-layers 1"),
    (2, f"{TENSOR} --sequence-parallel"),
    (2, PIPELINE),
    (2, f"{PIPELINE} --num-layers-per-virtual-pipeline-stage 1"),
    (2, "--use-distributed-optimizer --overlap-grad-reduce --overlap-param-gather"),
    (4, f"{LLAMA} {TENSOR} {PIPELINE} --sequence-parallel"),
    (4, f"--bf16 --use-distributed-optimizer {PIPELINE}"),
]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--commit", default=COMMIT)
    parser.add_argument("--rounds", type=int, default=8, help="runs of each version that are timed")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        earlier = Path(name)
        archive = subprocess.run(["git", "archive", options.commit], cwd=ROOT, stdout=subprocess.PIPE, check=True)
        subprocess.run(["tar", "x", "-C", earlier], input=archive.stdout, check=True)
        same = [compare(earlier, ranks, flags) for ranks, flags in LAYOUTS]
        print(json.dumps(timed(earlier, options.rounds)), flush=True)
    return int(not all(same))


def compare(earlier: Path, ranks: int, flags: str) -> bool:
    then, now = (trained(tree, ranks, f"{SMALL} {flags}")["losses"] for tree in (earlier, ROOT))
    same = len(now) == 20 and [loss.hex() for loss in then] == [loss.hex() for loss in now]
    print(json.dumps({"ranks": ranks, "flags": flags, "same_bits": same}), flush=True)
    return same


def timed(earlier: Path, rounds: int) -> dict[str, Any]:
    """Of a settled step the milliseconds, and those of the processor, which neighbours change less."""
    runs: dict[Path, list[dict[str, Any]]] = {earlier: [], ROOT: []}
    for number in range(rounds):
        for tree in (earlier, ROOT) if number % 2 else (ROOT, earlier):
            runs[tree].append(trained(tree, 1, TIMED))
    return {
        "step": _compared([[statistics.median(run["seconds"][SETTLING:]) for run in each] for each in runs.values()]),
        "processor": _compared([[_processor_seconds(run["processor"]) for run in each] for each in runs.values()]),
    }


def _processor_seconds(at_end: list[float]) -> float:
    settled = at_end[SETTLING:]
    return (settled[-1] - settled[0]) / (len(settled) - 1)


def _compared(versions: list[list[float]]) -> dict[str, Any]:
    """Of seconds a run, the earlier version's and this one's: medians, and of the ratio of each pair the least, the
    median and the most."""
    then, now = (round(1000 * statistics.median(each), 2) for each in versions)
    ratios = [new / old for old, new in zip(*versions, strict=True)]
    spread = [round(each, 3) for each in (min(ratios), statistics.median(ratios), max(ratios))]
    return {"earlier_ms": then, "now_ms": now, "ratio_min_median_max": spread}


def trained(tree: Path, ranks: int, flags: str) -> dict[str, Any]:
    """What the last rank prints."""
    roots = [tree, *(each.parent for part in ("libs", "services") for each in tree.glob(f"{part}/*/megatronapp"))]
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(map(str, roots)),
        "PYTHONDONTWRITEBYTECODE": "1",
        "OMP_NUM_THREADS": "1",
    }
    launch = [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={ranks}", str(RANK)]
    run = subprocess.run([*launch, *flags.split()], cwd=tree, env=environment, capture_output=True, text=True)
    if run.returncode:
        raise SystemExit(run.stderr[-4000:])
    found: dict[str, Any] = json.loads(run.stdout.splitlines()[-1])
    if not Path(found["trainer"]).is_relative_to(tree):
        raise SystemExit(f"the trainer of {found['trainer']} was run in place of that of {tree}")
    return found


if __name__ == "__main__":
    sys.exit(main())
