"""A TrainingJob takes the sizes that the trainer takes, and no others."""

from __future__ import annotations

from typing import Any

from hypothesis import example, given
from hypothesis import strategies as st

from megatronapp.core.errors import UsageError
from megatronapp.core.trainingjob import Spec
from megatronapp.trainer import arguments
from megatronapp.trainer.plugins.dpp import DppPlugin
from megatronapp.trainer.plugins.fbd import FbdPlugin
from megatronapp.trainer.plugins.fbd.plan import Plan
from tests.support.training import TINY

MODEL = "--num-layers 12 --num-attention-heads 12 --hidden-size 48 --micro-batch-size 1 --global-batch-size 5040"
EXPERTS = "--num-experts 12 --disable-bias-linear"
SIZES = st.integers(1, 3)
SPECS = st.fixed_dictionaries(
    {
        "procPerNode": st.integers(1, 24),
        "parallelism": st.fixed_dictionaries(dict.fromkeys(("tensor", "pipeline", "context", "expert"), SIZES)),
        "fbd": st.fixed_dictionaries(
            {},
            optional={
                "mode": st.sampled_from(["Input", "Linears", "Layers"]),
                "forwardTensor": SIZES,
                "forwardPipeline": SIZES,
                "ignoreForwardTensorParallel": st.booleans(),
            },
        ),
    }
)


def spec_of(case: dict[str, Any]) -> Spec | None:
    given = {**case, "plugins": {"fbd": {"enabled": True, **case["fbd"]}}}
    del given["fbd"]
    try:
        return Spec.model_validate(given)
    except ValueError:
        return None


def flags_of(case: dict[str, Any]) -> str:
    """What the trainer is asked for, also where no Spec is."""
    sizes, fbd = case["parallelism"], case["fbd"]
    experts = EXPERTS + " --sequence-parallel" * (sizes["tensor"] > 1) if sizes["expert"] > 1 else ""
    split = [f"--{axis}-model-parallel-size {sizes[axis]}" for axis in ("tensor", "pipeline", "expert")]
    own = [
        f"--forward-{axis.lower()}-model-parallel-size {fbd[f'forward{axis}']}"
        for axis in ("Tensor", "Pipeline")
        if f"forward{axis}" in fbd
    ]
    own += [f"--fbd-mode {fbd['mode'].lower()}"] if "mode" in fbd else []
    own += ["--ignore-forward-tensor-parallel"] if fbd.get("ignoreForwardTensorParallel") else []
    shared = f"--context-parallel-size {sizes['context']} --seq-length {36 * sizes['context']}"
    return " ".join([shared, *split, *own, experts])


def case_of(ranks: int, *, fbd: dict[str, Any] | None = None, **sizes: int) -> dict[str, Any]:
    axes = {"tensor": 1, "pipeline": 2, "context": 1, "expert": 1}
    return {"procPerNode": ranks, "parallelism": {**axes, **sizes}, "fbd": fbd or {}}


@example(case_of(8, context=2))
@example(case_of(6, context=2))
@example(case_of(12, context=3))
@example(case_of(4, expert=2))
@example(case_of(8, expert=2))
@example(case_of(12, expert=3, context=2))
@example(case_of(24, expert=3, context=2))
@example(case_of(8, context=2, expert=2))
@example(case_of(8, expert=2, fbd={"mode": "Linears"}))
@example(case_of(3, tensor=2, pipeline=1, fbd={"mode": "Layers", "forwardTensor": 1}))
@example(case_of(12, tensor=2, expert=2, fbd={"forwardTensor": 1}))
@example(case_of(6, tensor=2, fbd={"mode": "Linears", "forwardTensor": 1}))
@example(case_of(10, tensor=2, fbd={"forwardTensor": 3}))
@example(case_of(4, pipeline=1, context=2, fbd={"mode": "Linears"}))
@given(SPECS)
def test_a_job_takes_the_sizes_that_the_trainer_takes(case: dict[str, Any]) -> None:
    flags = f"{TINY} --train-iters 1 {MODEL} --forward-backward-disaggregating {flags_of(case)}"
    namespace = arguments.parse(flags.split(), [DppPlugin, FbdPlugin])[1]

    spec, refusal = spec_of(case), ""
    try:
        Plan.of(namespace, case["procPerNode"])
    except UsageError as error:
        refusal = str(error)

    assert (spec is None) == bool(refusal), refusal
