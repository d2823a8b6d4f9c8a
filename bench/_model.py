"""The models of the training benchmarks: made-up data, no dropout."""

from __future__ import annotations

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
    # The same in 12 layers, which 2, 3 and 4 pipeline stages divide.
    "1b-pipeline": "--num-layers 12 --hidden-size 3072 --num-attention-heads 24 --group-query-attention"
    " --num-query-groups 8 --ffn-hidden-size 8064 --seq-length 2048 --micro-batch-size 1 --global-batch-size 8 --bf16"
    " --swiglu --normalization RMSNorm --position-embedding-type rope --disable-bias-linear"
    " --untie-embeddings-and-output-weights --vocab-size 32000 --tokenizer-type NullTokenizer",
}
COMMON = (
    "--mock-data --num-workers 0 --lr 1e-4 --lr-decay-style constant --eval-iters 0 --log-interval 1000000"
    " --hidden-dropout 0 --attention-dropout 0"
)
