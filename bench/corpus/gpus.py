"""What is recorded on GPUs: two or four ranks of which one computes 5, 10 or 20 % slower, has a slow link or a
neighbour on its GPU, stands still, is stopped, dies or calls something else, and clean runs, with NCCL's operations.

    python -m bench.corpus record FOLDER --gpus 4 --within 150    # what four GPUs can record in 150 s
    python -m bench.corpus record FOLDER --gpus 2                 # what needs two alone
"""

from __future__ import annotations

from bench.corpus.outside import Deed, FromOutside
from megatronapp.core.scenario import Fault, FaultKind, HangSide, Scenario
from tests.faults.cases import FROM_STEP, LAYOUTS, Case, slow, stall
from tests.faults.cases import case as named

WIDE = (
    "--num-layers=4 --hidden-size=4096 --num-attention-heads=32 --seq-length=1024 --micro-batch-size=4"
    " --global-batch-size=32 --bf16 --train-iters=100000 --lr=1e-4 --mock-data --tokenizer-type=NullTokenizer"
    " --vocab-size=8191 --num-workers=0 --attention-dropout=0 --hidden-dropout=0 --log-interval=1000000 --eval-iters=0"
    " --trace --trace-granularity=base --nccl-trace"
)
"""Passes that take a GPU longer than a host takes to launch them, also one that others use. With a quarter of the width
a forward pass took 10 ms on such a host: a GPU slower by 20 % cost the step nothing, and nobody was named."""
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


OF_FOUR = (
    named("DP4", stands(FaultKind.SKIP_COLLECTIVE, 2)),
    named("DP4", stands(FaultKind.WRONG_SIZE, 1)),
    named("PP2 x DP2", stall(FaultKind.LATE_LINK, 1, 0.02)),
    named("DP4", stands(FaultKind.WRONG_ORDER, 3)),
    clean("PP2 x DP2"),
    named("PP2 x DP2", slow(2, 1.05)),
    Case(
        "PP2 x TP2: hang of the device",
        "PP2 x TP2 (DP1)",
        Scenario(faults=(stands(FaultKind.HANG, 1, HangSide.DEVICE),)),
    ),
)
OF_TWO = (
    FromOutside("DP2: rank 1 is stopped", "DP2", Scenario(), Deed.STOP, 1),
    FromOutside("DP2: a neighbour on the GPU of rank 0", "DP2", Scenario(), Deed.NEIGHBOUR, 0),
    named("DP2", slow(1, 1.2)),
    named("DP2", slow(0, 1.1)),
    named("DP2", stands(FaultKind.KILL, 1)),
    clean("DP2"),
    clean("PP2"),
    Case("TP2: hang of the device", "TP2", Scenario(faults=(stands(FaultKind.HANG, 0, HangSide.DEVICE),))),
    named("PP2", slow(0, 1.2)),
    named("DP2", slow(1, 1.05)),
    Case("DP2: hang of the device", "DP2", Scenario(faults=(stands(FaultKind.HANG, 1, HangSide.DEVICE),))),
    Case("PP2: hang of the host", "PP2", Scenario(faults=(stands(FaultKind.HANG, 1, HangSide.HOST),))),
)
"""Those first that matter most: little time records some of them."""
SHARE_OF_TWO = 0.5
"""Of the time that four GPUs have, for what needs two."""
