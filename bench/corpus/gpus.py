"""What is recorded on GPUs: two or four ranks of which one computes 5, 10 or 20 % slower, stands still, dies or calls
something else, and clean runs, with NCCL's own operations.

    python -m bench.corpus record FOLDER --gpus 2 --part 0/2      # beside --part 1/2 on two other GPUs
    python -m bench.corpus record FOLDER --gpus 4
"""

from __future__ import annotations

from megatronapp.core.scenario import Fault, FaultKind, HangSide, Scenario
from tests.faults.cases import FROM_STEP, LAYOUTS, Case, slow
from tests.faults.cases import case as named

WIDE = (
    "--num-layers=4 --hidden-size=1024 --num-attention-heads=8 --seq-length=512 --micro-batch-size=2"
    " --global-batch-size=16 --bf16 --train-iters=100000 --lr=1e-4 --mock-data --tokenizer-type=NullTokenizer"
    " --vocab-size=8191 --num-workers=0 --attention-dropout=0 --hidden-dropout=0 --log-interval=1000000 --eval-iters=0"
    " --trace --trace-granularity=base --nccl-trace"
)
"""Passes of some milliseconds of a GPU, which the GPU, not its host, is the bottleneck of."""
PAIRS: dict[str, tuple[str, ...]] = {
    "DP2": (),
    "PP2": ("--pipeline-model-parallel-size=2",),
    "TP2": ("--tensor-model-parallel-size=2",),
}
FOURS = {name: LAYOUTS[name] for name in ("DP4", "PP2 x DP2", "PP2 x TP2 (DP1)")}


def stands(kind: FaultKind, rank: int, side: HangSide | None = None) -> Fault:
    return Fault(kind=kind, ranks=(rank,), side=side, from_step=FROM_STEP, to_step=FROM_STEP)


def clean(layout: str) -> Case:
    return Case(f"{layout}: clean", layout, Scenario())


OF_TWO = (
    named("DP2", slow(1, 1.05)),
    named("DP2", slow(0, 1.1)),
    named("DP2", slow(1, 1.2)),
    named("PP2", slow(0, 1.2)),
    Case("DP2: hang of the device", "DP2", Scenario(faults=(stands(FaultKind.HANG, 1, HangSide.DEVICE),))),
    Case("TP2: hang of the device", "TP2", Scenario(faults=(stands(FaultKind.HANG, 0, HangSide.DEVICE),))),
    Case("PP2: hang of the host", "PP2", Scenario(faults=(stands(FaultKind.HANG, 1, HangSide.HOST),))),
    named("DP2", stands(FaultKind.KILL, 1)),
    clean("DP2"),
    clean("PP2"),
)
OF_FOUR = (
    named("DP4", stands(FaultKind.SKIP_COLLECTIVE, 2)),
    named("DP4", stands(FaultKind.WRONG_SIZE, 1)),
    named("DP4", stands(FaultKind.WRONG_ORDER, 3)),
    named("PP2 x DP2", slow(2, 1.05)),
    Case("PP2 x TP2: hang of the device", "PP2 x TP2 (DP1)", OF_TWO[4].scenario),
    clean("PP2 x DP2"),
)
