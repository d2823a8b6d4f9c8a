"""Megatron-LM's flags: each of its example scripts' has one fate, and command lines come out in our own flags."""

from __future__ import annotations

import pytest

from megatronapp.core.errors import UsageError
from megatronapp.trainer import arguments, foreign_flags
from megatronapp.trainer.foreign_flags import table, translate
from megatronapp.trainer.layout import Layout

GPT3 = (
    "--num-layers 4 --hidden-size 64 --num-attention-heads 4 --seq-length 32 --max-position-embeddings 32 "
    "--attention-backend auto --micro-batch-size 1 --global-batch-size 16 --rampup-batch-size 4 4 100 "
    "--train-iters 50 --weight-decay 0.1 --adam-beta1 0.9 --adam-beta2 0.95 --init-method-std 0.006 --clip-grad 1.0 "
    "--fp16 --lr 6.0e-5 --lr-decay-style cosine --min-lr 6.0e-6 --lr-warmup-fraction .001 --lr-decay-iters 40 "
    "--tensor-model-parallel-size 8 --pipeline-model-parallel-size 16 --data-path data --vocab-file vocab.json "
    "--merge-file merges.txt --split 949,50,1 --log-interval 100 --save-interval 10000 --eval-interval 1000 "
    "--save out --load out --eval-iters 10 --tensorboard-dir logs"
)
LLAMA = (
    "--use-mcore-models --num-layers 4 --hidden-size 64 --ffn-hidden-size 128 --num-attention-heads 4 "
    "--group-query-attention --num-query-groups 2 --kv-channels 16 --seq-length 32 --max-position-embeddings 32 "
    "--position-embedding-type rope --rotary-base 1000000 --rotary-percent 1.0 --attention-dropout 0.0 "
    "--hidden-dropout 0.0 --swiglu --init-method-std 0.0134 --attention-backend fused --fp8-format hybrid "
    "--fp8-amax-history-len 1024 --fp8-amax-compute-algo max "
    "--untie-embeddings-and-output-weights --disable-bias-linear --micro-batch-size 1 --global-batch-size 128 "
    "--train-samples 1280 --lr-decay-samples 640 --lr-warmup-samples 128 --lr 0.00015 --min-lr 0.00001 "
    "--lr-decay-style cosine --clip-grad 1.0 --weight-decay 0.1 --adam-beta1 0.9 --adam-beta2 0.95 --bf16 "
    "--grad-reduce-in-bf16 --cross-entropy-loss-fusion --calculate-per-token-loss --manual-gc "
    "--empty-unused-memory-level 1 --exit-duration-in-mins 235 --use-distributed-optimizer --overlap-grad-reduce "
    "--overlap-param-gather --tensor-model-parallel-size 1 --context-parallel-size 1 --sequence-parallel --mock-data "
    "--tokenizer-type NullTokenizer --vocab-size 1000 --data-cache-path cache --tiktoken-pattern v2 --split 99,1,0 "
    "--no-create-attention-mask-in-dataloader --no-mmap-bin-files --num-workers 1 --log-interval 1 --eval-iters 32 "
    "--eval-interval 100 --save-interval 1000 --log-throughput --profile --profile-step-start 4 --profile-step-end 6 "
    "--ckpt-format torch_dist --distributed-timeout-minutes 60 --save out --load out --tensorboard-dir logs"
)
BERT = (
    "--num-layers 24 --hidden-size 1024 --num-attention-heads 16 --seq-length 512 --max-position-embeddings 512 "
    "--attention-backend auto --micro-batch-size 4 --global-batch-size 32 --train-iters 100 --weight-decay 1e-2 "
    "--clip-grad 1.0 --fp16 --lr 0.0001 --lr-decay-iters 90 --lr-decay-style linear --min-lr 1.0e-5 "
    "--lr-warmup-fraction .01 --tensor-model-parallel-size 8 --pipeline-model-parallel-size 16 --data-path data "
    "--vocab-file vocab.txt --split 949,50,1 --log-interval 100 --save-interval 10 --eval-interval 10 --save out "
    "--load out --eval-iters 10 --tensorboard-dir logs"
)
T5 = (
    "--encoder-num-layers 12 --decoder-num-layers 6 --hidden-size 768 --num-attention-heads 12 --kv-channels 64 "
    "--ffn-hidden-size 3072 --encoder-seq-length 512 --decoder-seq-length 128 --max-position-embeddings 512 "
    "--micro-batch-size 64 --global-batch-size 512 --lr 0.0001 --train-iters 100 --lr-decay-iters 100 "
    "--lr-decay-style linear --min-lr 0.00001 --weight-decay 1e-2 --lr-warmup-fraction 0.01 --clip-grad 1.0 --bf16 "
    "--vocab-extra-ids 100 --init-method-std 0.015 --transformer-impl transformer_engine "
    "--tensor-model-parallel-size 1 --pipeline-model-parallel-size 1 --attention-backend auto --data-path data "
    "--vocab-file vocab.txt --tokenizer-type BertWordPieceCase --split 99982,9,9 --log-interval 100 "
    "--tensorboard-dir logs --save-interval 500 --eval-interval 1000 --eval-iters 10 --distributed-backend nccl "
    "--save out --load out"
)


@pytest.mark.parametrize("folder", ["gpt3", "bert", "t5", "llama"])
def test_every_flag_of_the_scripts_has_one_fate(folder: str) -> None:
    ours = set(arguments.build_parser()._option_string_actions)
    known = table()
    fates = [ours, set(known.means), set(known.in_samples), set(known.meaningless), set(known.refused)]

    assert known.scripts[folder]
    for flag in known.scripts[folder]:
        assert sum(flag in fate for fate in fates) == 1, flag


def test_the_gpt3_script_parses_unchanged() -> None:
    config, _ = arguments.parse(GPT3.split())

    assert config.training.fp16
    assert config.training.rampup_batch_size == (4, 4, 100)
    assert config.data.tokenizer_type == "GPT2BPETokenizer"
    assert {flag for flag in GPT3.split() if flag.startswith("--")} == set(table().scripts["gpt3"])


def test_the_bert_script_parses_unchanged() -> None:
    config, _ = arguments.parse([*BERT.split(), "--model-type", "bert"])

    assert config.data.tokenizer_type == "BertWordPieceLowerCase"
    assert (config.model.num_layers, config.parallel.pipeline_model_parallel_size) == (24, 16)
    assert {flag for flag in BERT.split() if flag.startswith("--")} == set(table().scripts["bert"])


def test_the_t5_script_parses_unchanged() -> None:
    config, _ = arguments.parse([*T5.split(), "--model-type", "t5"])

    assert (config.model.num_layers, config.model.decoder_num_layers) == (12, 6)
    assert (config.training.seq_length, config.training.decoder_seq_length) == (512, 128)
    assert config.data.tokenizer_type == "BertWordPieceCase"
    assert Layout.of(config, 8).data == 8
    assert {flag for flag in T5.split() if flag.startswith("--")} == set(table().scripts["t5"])


def test_the_llama_script_parses_but_for_what_is_refused() -> None:
    config, _ = arguments.parse(LLAMA.split())

    assert config.training.train_iters == 10
    assert (config.schedule.lr_decay_iters, config.schedule.lr_warmup_iters) == (5, 1)
    assert config.training.calculate_per_token_loss
    assert not config.parallel.sequence_parallel
    assert (config.training.fp8_format, config.training.fp8_amax_history_len) == ("hybrid", 1024)
    left = set(table().scripts["llama"]) - {flag for flag in LLAMA.split() if flag.startswith("--")}
    assert left - set(table().refused) == {"--pipeline-model-parallel-size", "--data-path", "--tokenizer-model"}


@pytest.mark.parametrize(
    ("given", "ours"),
    [
        ("--recompute-activations", "--recompute-granularity selective"),
        ("--use-flash-attn", "--attention-backend flash"),
        ("--use-rotary-position-embeddings", "--position-embedding-type rope"),
        ("--no-position-embedding", "--position-embedding-type none"),
        ("--no-position-embedding --use-rotary-position-embeddings", "--position-embedding-type rope"),
        ("--no-rope-fusion --bf16 --no-bias-gelu-fusion", "--bf16"),
        ("--encoder-num-layers=2 --encoder-seq-length 64", "--num-layers 2 --seq-length 64"),
        ("--tiktoken-pattern v2 --bf16", "--bf16"),
        ("--tiktoken-pattern=v2 --bf16", "--bf16"),
        ("--global-batch-size 4 --train-samples 41", "--global-batch-size 4 --train-iters 10"),
        ("--sequence-parallel --tensor-model-parallel-size 2", "--sequence-parallel --tensor-model-parallel-size 2"),
        ("--log-throughput 3", "3"),
        ("--attention-softmax-in-fp32 --bf16", "--bf16"),
        ("--optimizer-cpu-offload --overlap-cpu-optimizer-d2h-h2d --no-pin-cpu-grads", "--optimizer-cpu-offload"),
        ("--local-rank 3 --timing-log-level=2 --accumulate-allreduce-grads-in-fp32 --bf16", "--bf16"),
    ],
)
def test_other_names_come_out_as_ours(given: str, ours: str) -> None:
    assert translate(given.split()).argv == ours.split()


def test_what_has_no_effect_is_said() -> None:
    assert translate(["--manual-gc"]).remarks == [
        "--manual-gc has no effect: Python's garbage collector is left as it is"
    ]


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ("--fp8-param-gather", "weights stay in 16 bits: leave it out"),
        ("--moe-use-legacy-grouped-gemm", "give --moe-grouped-gemm alone"),
        ("--quick-geglu", "take --geglu"),
        ("--use-legacy-models", "leave it out"),
        ("--train-samples 100", "needs --global-batch-size"),
        ("--train-samples many --global-batch-size 2", "a whole number of samples"),
        ("--train-samples 100 --global-batch-size 0", "too small"),
        ("--train-samples 100 --global-batch-size 8 --rampup-batch-size 4 4 8", "give --train-iters"),
    ],
)
def test_what_is_refused_names_the_way_out(given: str, said: str) -> None:
    with pytest.raises(UsageError, match=said):
        foreign_flags.translate(given.split())
