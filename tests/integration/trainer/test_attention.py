"""Our attention learns as megatron-core's own does, and the same in every layout; in `make test` for a few steps."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import cache
from typing import Any

import pytest
import torch

from megatronapp.trainer import launch  # noqa: F401  (imported once, before the ranks are forked)
from megatronapp.trainer.models.gpt import GPTTrainStep, document_mask
from tests.support.forked import run_forked
from tests.support.marks import briefly
from tests.support.training import TINY, train

STEPS = 20
FEW = 5
RELATIVE = 1e-5

slower = pytest.mark.long

FLASH, ALIBI = "--attention-backend flash", "--position-embedding-type alibi"
WINDOW = "--window-size 4,0 --position-embedding-type rope"
DROPOUT = "--hidden-dropout 0.1 --attention-dropout 0.1"
ONE_GROUP = "--group-query-attention --num-query-groups 1"
DOCUMENTS = "--reset-attention-mask --reset-position-ids --eod-mask-loss"
INTERLEAVED = "--pipeline-model-parallel-size 2 --num-layers-per-virtual-pipeline-stage 1"
TENSOR, CONTEXT = "--tensor-model-parallel-size 2", "--context-parallel-size 2"


def losses(flags: str, world_size: int = 1, steps: int = STEPS) -> list[float]:
    return run_forked(world_size, train, f"{TINY} --train-iters {steps} {flags}")[-1].losses


@cache
def single(flags: str = "", steps: int = STEPS) -> list[float]:
    return losses(flags, steps=steps)


@pytest.mark.parametrize(("flags", "steps"), briefly([("",), pytest.param(ONE_GROUP, marks=slower)], FEW, STEPS))
def test_the_fused_kernel_learns_as_megatron_cores_attention(flags: str, steps: int) -> None:
    assert losses(f"{flags} {FLASH}", steps=steps) == pytest.approx(single(flags, steps), rel=RELATIVE)


@pytest.mark.parametrize("steps", [FEW, pytest.param(STEPS, marks=slower)])
def test_dropout_draws_as_in_megatron_cores_attention(steps: int) -> None:
    assert losses(f"{DROPOUT} {FLASH}", steps=steps) == single(DROPOUT, steps)


@slower
def test_computed_plainly_it_is_megatron_cores_attention() -> None:
    assert losses("--attention-backend unfused") == single()


@pytest.mark.parametrize(
    ("model", "world_size", "layout", "steps"),
    briefly(
        [
            (ALIBI, 2, f"{TENSOR} --sequence-parallel"),
            pytest.param(ALIBI, 2, CONTEXT, marks=slower),
            pytest.param(ALIBI, 2, "--pipeline-model-parallel-size 2", marks=slower),
            (WINDOW, 2, CONTEXT),
            pytest.param(WINDOW, 2, TENSOR, marks=slower),
            pytest.param(
                f"{WINDOW} --window-attn-skip-freq 0 1 1 0", 2, "--pipeline-model-parallel-size 2", marks=slower
            ),
            (ONE_GROUP, 2, TENSOR),
            pytest.param(ONE_GROUP, 2, f"{TENSOR} --sequence-parallel {FLASH}", marks=slower),
            pytest.param(f"{ONE_GROUP} {ALIBI}", 4, "--tensor-model-parallel-size 4", marks=slower),
            pytest.param(DOCUMENTS, 2, TENSOR, marks=slower),
            (f"{DOCUMENTS} --num-layers 3", 3, "--pipeline-model-parallel-size 3"),
            pytest.param(DOCUMENTS, 2, INTERLEAVED, marks=slower),
            pytest.param(DOCUMENTS, 4, f"--pipeline-model-parallel-size 2 {TENSOR} --sequence-parallel", marks=slower),
            pytest.param(DOCUMENTS, 4, f"--pipeline-model-parallel-size 2 {CONTEXT}", marks=slower),
            pytest.param(f"{DOCUMENTS} {ALIBI}", 2, CONTEXT, marks=slower),
            pytest.param("", 2, CONTEXT, marks=slower),
            pytest.param("--calculate-per-token-loss", 2, CONTEXT, marks=slower),
            pytest.param("", 4, f"{CONTEXT} {TENSOR} --sequence-parallel", marks=slower),
            pytest.param("", 4, f"{CONTEXT} --pipeline-model-parallel-size 2", marks=slower),
            pytest.param("", 4, f"{CONTEXT} --use-distributed-optimizer", marks=slower),
            pytest.param("--recompute-granularity selective", 2, CONTEXT, marks=slower),
        ],
        FEW,
        STEPS,
    ),
)
def test_layout_has_the_losses_of_one_process(model: str, world_size: int, layout: str, steps: int) -> None:
    assert losses(f"{model} {layout}", world_size, steps) == pytest.approx(single(model, steps), rel=RELATIVE)


class Documents(GPTTrainStep):
    """Two documents in each row of the data, which are learned in one row, or in one each."""

    def __init__(self, settings: Any, *, packed: bool) -> None:
        super().__init__(settings)
        self._packed = packed

    def get_batch(self, iterator: Iterator[Mapping[str, Any]]) -> dict[str, torch.Tensor]:
        batch = {name: value for name, value in next(iterator).items() if isinstance(value, torch.Tensor)}
        rows, length = batch["tokens"].shape
        batch["position_ids"] = batch["position_ids"] % (length // 2)
        if self._packed:
            return {**batch, "attention_mask": document_mask(batch["position_ids"])}
        return {name: value.reshape(2 * rows, length // 2) for name, value in batch.items()}


@pytest.mark.parametrize(("backend", "steps"), briefly([("local",), ("flash",)], FEW, STEPS))
def test_documents_of_one_row_are_learned_as_those_of_rows_of_their_own(backend: str, steps: int) -> None:
    flags = f"--attention-backend {backend} --train-step {__name__}:Documents --train-step-kwargs"

    packed, alone = (losses(f'{flags} {{"packed":{value}}}', steps=steps) for value in ("true", "false"))

    assert packed == pytest.approx(alone, rel=RELATIVE)


def test_documents_that_are_told_apart_are_learned_otherwise() -> None:
    assert losses(DOCUMENTS, steps=FEW) != single(steps=FEW)
