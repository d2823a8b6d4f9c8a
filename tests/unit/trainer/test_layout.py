"""How a world is divided, and what is refused before a process group exists."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from megatronapp.core.errors import UsageError
from megatronapp.trainer import arguments
from megatronapp.trainer.layout import Layout

NEEDED = (
    "--num-layers 8 --hidden-size 64 --num-attention-heads 4 --train-iters 10 --micro-batch-size 2 --seq-length 32 "
    "--lr 1e-3"
)
GROUPED = "--num-experts 2 --disable-bias-linear --moe-grouped-gemm"


def layout(flags: str, world: int) -> Layout:
    config, _ = arguments.parse(f"{NEEDED} {flags}".split())
    return Layout.of(config, world)


def test_ranks_left_over_by_the_model_are_data_parallel() -> None:
    found = layout("--tensor-model-parallel-size 2 --pipeline-model-parallel-size 2 --global-batch-size 24", 12)

    assert (found.data, found.microbatches, found.schedule) == (3, 4, "1f1b")


def test_global_batch_size_defaults_to_one_microbatch_a_replica() -> None:
    found = layout("", 4)

    assert (found.global_batch_size, found.microbatches, found.schedule) == (8, 1, "none")


@pytest.mark.parametrize(
    "flags", ["--num-layers-per-virtual-pipeline-stage 2", "--num-virtual-stages-per-pipeline-rank 2"]
)
def test_both_ways_to_ask_for_virtual_stages_mean_the_same(flags: str) -> None:
    found = layout(f"--pipeline-model-parallel-size 2 --global-batch-size 4 {flags}", 2)

    assert (found.virtual, found.schedule) == (2, "interleaved")


def test_first_and_last_stage_may_have_other_numbers_of_layers() -> None:
    flags = "--pipeline-model-parallel-size 3 --decoder-first-pipeline-num-layers 4 --global-batch-size 6"

    virtual = layout(f"{flags} --num-virtual-stages-per-pipeline-rank 2", 3).virtual

    assert virtual == 2


@pytest.mark.parametrize(
    ("world", "flags", "said"),
    [
        (3, "--pipeline-model-parallel-size 2", "3 ranks can't be divided into groups of 2"),
        (4, "--tensor-model-parallel-size 2 --pipeline-model-parallel-size 4", "groups of 8"),
        (2, "--global-batch-size 6", "--global-batch-size 6 is no multiple"),
        (3, "--pipeline-model-parallel-size 3", "--num-layers 8 is no multiple of 3"),
        (1, "--swiglu --squared-relu", "--swiglu and --squared-relu are different MLPs"),
        (1, "--cpu-offloading-num-layers 9", "9 is more than --num-layers 8"),
        (1, "--cpu-offloading-num-layers 8 --recompute-granularity selective", "leave one out"),
        (1, "--cpu-offloading-num-layers 8 --transformer-impl transformer_engine", "give --transformer-impl local"),
        (1, "--optimizer-cpu-offload --optimizer sgd", "holds Adam's state"),
        (1, "--optimizer-cpu-offload --optimizer-offload-fraction 0", "must be above 0"),
        (
            4,
            "--ffn-hidden-size 66 --tensor-model-parallel-size 4",
            "--ffn-hidden-size 66 can't be split over 4 .* give a multiple of 4",
        ),
        (
            2,
            "--num-experts 2 --disable-bias-linear --moe-ffn-hidden-size 7 --tensor-model-parallel-size 2 "
            "--sequence-parallel",
            "--moe-ffn-hidden-size 7 can't be split over 2",
        ),
        (1, "--swiglu --geglu", "--swiglu and --geglu are different MLPs"),
        (1, "--moe-shared-expert-intermediate-size 8", "needs --num-experts"),
        (1, "--bf16 --fp8-format hybrid", "--fp8-format hybrid is computed by Transformer Engine: install it"),
        (1, "--fp8-format e4m3 --transformer-impl transformer_engine", "products of bfloat16: give --bf16"),
        (1, "--moe-grouped-gemm", "--moe-grouped-gemm needs --num-experts"),
        (1, f"{GROUPED} --moe-ffn-hidden-size 6", "multiple of 4, not 64, and an inner width .* one of 4, not 6"),
        (1, f"{GROUPED} --moe-ffn-hidden-size 12 --bf16", "one of 8, not 12"),
        (
            2,
            f"{GROUPED} --moe-ffn-hidden-size 12 --tensor-model-parallel-size 2 --sequence-parallel",
            "one of 8, not 12",
        ),
        (
            2,
            "--num-experts 2 --disable-bias-linear --moe-shared-expert-intermediate-size 9 "
            "--tensor-model-parallel-size 2 --sequence-parallel",
            "9 can't be split over 2 tensor ranks",
        ),
        (1, "--decoder-first-pipeline-num-layers 4", "need --pipeline-model-parallel-size 2 or more"),
        (2, "--pipeline-model-parallel-size 2 --decoder-last-pipeline-num-layers 0", "0 is too small"),
        (2, "--pipeline-model-parallel-size 2 --decoder-last-pipeline-num-layers 8", "leave 0 of 8 layers to 1 other"),
        (4, "--pipeline-model-parallel-size 4 --decoder-last-pipeline-num-layers 1", "leave 7 of 8 layers to 3 other"),
        (
            2,
            "--pipeline-model-parallel-size 2 --decoder-first-pipeline-num-layers 5 "
            "--decoder-last-pipeline-num-layers 2",
            "first-pipeline-num-layers and .* leave 1 of 8 layers to 0 other",
        ),
        (
            2,
            "--pipeline-model-parallel-size 2 --decoder-first-pipeline-num-layers 5 "
            "--num-layers-per-virtual-pipeline-stage 1",
            "give --num-virtual-stages-per-pipeline-rank in place of",
        ),
        (
            2,
            "--pipeline-model-parallel-size 2 --decoder-first-pipeline-num-layers 5 "
            "--num-virtual-stages-per-pipeline-rank 3",
            "5 layers per stage can't be cut",
        ),
        (8, "--tensor-model-parallel-size 8", "can't be split over 8 tensor ranks"),
        (1, "--group-query-attention --num-query-groups 3", "can't share 3 query groups"),
        (1, "--hidden-size 66", "--hidden-size 66 is no multiple of 4 heads"),
        (2, "--optimizer sgd --use-distributed-optimizer", "can't shard --optimizer sgd: take --optimizer adam"),
        (2, "--tensor-model-parallel-size 2 --sequence-parallel --seq-length 33", "--seq-length 33 can't be split"),
        (1, "--max-position-embeddings 16", "is less than --seq-length 32"),
        (1, "--num-layers-per-virtual-pipeline-stage 2", "virtual pipeline stages need"),
        (2, "--pipeline-model-parallel-size 2 --num-layers-per-virtual-pipeline-stage 3", "can't be cut"),
        (
            2,
            "--pipeline-model-parallel-size 2 --num-layers-per-virtual-pipeline-stage 2 "
            "--num-virtual-stages-per-pipeline-rank 2",
            "not both",
        ),
        (
            2,
            "--pipeline-model-parallel-size 2 --num-layers-per-virtual-pipeline-stage 2 --global-batch-size 6",
            "needs microbatches",
        ),
        (2, "--context-parallel-size 2 --seq-length 30", "--seq-length 30 can't be shared by 2 context-parallel ranks"),
        (
            4,
            "--context-parallel-size 2 --tensor-model-parallel-size 2 --sequence-parallel --seq-length 36 "
            "--attention-backend local",
            "--attention-backend local can't do --context-parallel-size",
        ),
        (1, "--position-embedding-type alibi --attention-backend local", "local can't do --position-embedding-type"),
        (1, "--position-embedding-type alibi --transformer-impl transformer_engine", "needs --transformer-impl local"),
        (1, "--attention-backend fused", "--attention-backend fused is a kernel of Transformer Engine"),
        (1, "--window-size 16,4", "--window-size 16 4: give the tokens before, and 0 for those after"),
        (1, "--window-size 16", "--window-size 16: give the tokens before"),
        (1, "--window-size -2 0", "--window-size -2 0: give the tokens before"),
        (1, "--reset-attention-mask --transformer-impl transformer_engine", "needs --transformer-impl local"),
        (1, "--window-attn-skip-freq 2", "give that too"),
        (1, "--window-size 4 0 --window-attn-skip-freq 0", "--window-attn-skip-freq 0: give one number from 1, or"),
        (1, "--window-size 4 0 --window-attn-skip-freq 1 0", "1 0: give one number from 1, or 0 or 1 for each of 8"),
        (1, "--num-layers 2 --window-size 4 0 --window-attn-skip-freq 1 2", "1 2: give one number from 1"),
        (1, "--softmax-scale 0", "leaves nothing of the scores"),
        (
            4,
            "--tensor-model-parallel-size 4 --group-query-attention --num-query-groups 2 --num-attention-heads 6 "
            "--hidden-size 66",
            "6 attention heads in 2 groups can't be split over 4",
        ),
        (2, "--overlap-param-gather", "--overlap-param-gather needs"),
        (2, "--expert-model-parallel-size 2", "needs --num-experts"),
        (2, "--num-experts 4", "--disable-bias-linear"),
        (2, "--num-experts 3 --expert-model-parallel-size 2 --disable-bias-linear", "--num-experts 3"),
        (1, "--num-experts 2 --moe-router-topk 3 --disable-bias-linear", "more than 2 experts"),
        (2, "--num-experts 2 --tensor-model-parallel-size 2 --disable-bias-linear", "need --sequence-parallel"),
        (2, "--num-experts 4 --expert-model-parallel-size 4 --disable-bias-linear", "2 ranks can't be divided"),
        (1, "--recompute-granularity full", "needs --recompute-method"),
        (1, "--recompute-num-layers 1", "belong to --recompute-granularity full"),
    ],
)
def test_contradicting_flags_are_refused(world: int, flags: str, said: str) -> None:
    with pytest.raises(UsageError, match=said):
        layout(flags, world)


@settings(deadline=None)
@given(
    tensor=st.sampled_from([1, 2, 4]),
    pipeline=st.sampled_from([1, 2, 4, 8]),
    data=st.integers(1, 6),
    microbatches=st.integers(1, 9),
)
def test_every_divisible_layout_uses_every_rank_and_every_sample(
    tensor: int, pipeline: int, data: int, microbatches: int
) -> None:
    found = layout(
        f"--tensor-model-parallel-size {tensor} --pipeline-model-parallel-size {pipeline} "
        f"--global-batch-size {2 * data * microbatches}",
        tensor * pipeline * data,
    )

    assert found.tensor * found.pipeline * found.data == found.world
    assert found.microbatches * found.micro_batch_size * found.data == found.global_batch_size


MASKED = "--tokenizer-type BertWordPieceLowerCase --vocab-file vocab.txt --data-path data"
T5 = f"{MASKED} --model-type t5 --vocab-extra-ids 100"
RELATIVE = "--position-embedding-type relative"


@pytest.mark.parametrize(
    ("flags", "world", "said"),
    [
        (f"{T5} --pipeline-model-parallel-size 2", 2, "--model-type t5 can't be cut into pipeline stages"),
        (f"{MASKED} --model-type t5", 1, "give --vocab-extra-ids 100"),
        (f"{T5} --decoder-seq-length 33", 1, r"--decoder-seq-length 33 must be from 8 to .* \(32\)"),
        (f"{T5} --variable-seq-lengths", 1, "--variable-seq-lengths is not built for --model-type t5"),
        (f"{T5} --group-query-attention", 1, "--group-query-attention is not built for --model-type t5"),
        (
            f"{T5} --decoder-seq-length 9 --tensor-model-parallel-size 2 --sequence-parallel",
            2,
            "--decoder-seq-length 9 can't be split over 2",
        ),
        ("--model-type bert --mock-data", 1, "give --data-path"),
        ("--model-type bert --data-path data", 1, "needs --tokenizer-type BertWordPieceLowerCase"),
        (f"{MASKED} --model-type bert --mask-prob 1", 1, "--mask-prob 1.0 is no part"),
        (f"{MASKED} --model-type bert --short-seq-prob 2", 1, "--short-seq-prob 2.0 is more than all"),
        (f"{MASKED} --model-type bert --seq-length 4", 1, "--seq-length 4 is too small"),
        (f"{MASKED} --model-type bert --num-experts 2", 1, "--num-experts is not built for --model-type bert"),
        (f"{MASKED} --model-type bert --rotary-base 500000", 1, "--rotary-base is not built"),
        ("--position-embedding-type relative", 1, "relative is T5's"),
        (f"{MASKED} --model-type bert --position-embedding-type relative", 1, "relative is T5's"),
        (f"{MASKED} --model-type bert --position-embedding-type alibi", 1, "not built for --model-type bert"),
        (f"{T5} {RELATIVE} --attention-backend local", 1, "local can't do --position-embedding-type relative"),
        (f"{T5} {RELATIVE} --relative-attention-num-buckets 5", 1, "num-buckets 5 must be even"),
        (f"{T5} {RELATIVE} --relative-attention-max-distance 16", 1, "max-distance 16 more than half"),
        (f"{T5} {RELATIVE} --recompute-granularity selective", 1, "can't be computed again"),
    ],
)
def test_what_a_family_can_not_do_is_refused(flags: str, world: int, said: str) -> None:
    with pytest.raises(UsageError, match=said):
        layout(flags, world)


@pytest.mark.parametrize("flags", [T5, f"{MASKED} --model-type bert --pipeline-model-parallel-size 2"])
def test_what_a_family_can_do_is_laid_out(flags: str) -> None:
    assert layout(flags, 4).ranks == 4
