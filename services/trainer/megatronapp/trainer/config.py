"""The trainer's settings. Every field is one flag of the command line, named and meant as in Megatron-LM:
`hidden_size` is `--hidden-size`. The parser, docs/trainer.md and these classes can't differ, as the first two are
made from the third (arguments.py).

Sizes are elements, batch sizes are sequences, intervals are training steps.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any, Literal

HELP, MINIMUM = "help", "minimum"


def flag(default: Any, text: str, *, minimum: int | None = None) -> Any:
    """A field with its default value and its help text. Whole numbers start at 1, others at 0, or at `minimum`."""
    return dataclasses.field(default=default, metadata={HELP: text, MINIMUM: minimum})


def required(text: str) -> Any:
    """A field that the user must give."""
    return dataclasses.field(metadata={HELP: text, MINIMUM: None})


_SHAPE = (
    "num_layers",
    "hidden_size",
    "num_attention_heads",
    "ffn_hidden_size",
    "kv_channels",
    "group_query_attention",
    "num_query_groups",
    "position_embedding_type",
    "max_position_embeddings",
    "normalization",
    "swiglu",
    "disable_bias_linear",
    "add_qkv_bias",
    "qk_layernorm",
    "untie_embeddings_and_output_weights",
    "num_experts",
    "moe_ffn_hidden_size",
)


@dataclass(frozen=True, kw_only=True)
class ModelConfig:
    """Model."""

    num_layers: int = required("transformer layers")
    hidden_size: int = required("width of the residual stream")
    num_attention_heads: int = required("attention heads")
    ffn_hidden_size: int | None = flag(None, "inner width of the MLP; default 4 x hidden size, with --swiglu 2/3 of it")
    kv_channels: int | None = flag(None, "width of one attention head; default hidden size / heads")
    group_query_attention: bool = flag(False, "share keys and values among groups of heads")
    num_query_groups: int = flag(1, "number of such groups")
    position_embedding_type: Literal["learned_absolute", "rope", "none"] = flag(
        "learned_absolute", "position embedding"
    )
    max_position_embeddings: int | None = flag(None, "longest sequence of learned positions; default --seq-length")
    rotary_base: int = flag(10_000, "base of the rotary frequencies")
    rotary_percent: float = flag(1.0, "part of each head that is rotated")
    normalization: Literal["LayerNorm", "RMSNorm"] = flag("LayerNorm", "normalization")
    norm_epsilon: float = flag(1e-5, "epsilon of the normalization")
    swiglu: bool = flag(False, "gated MLP with SiLU in place of GELU")
    disable_bias_linear: bool = flag(False, "linear layers without bias")
    add_qkv_bias: bool = flag(False, "bias in the QKV projection even with --disable-bias-linear")
    qk_layernorm: bool = flag(False, "normalize queries and keys")
    untie_embeddings_and_output_weights: bool = flag(False, "an output layer with weights of its own")
    make_vocab_size_divisible_by: int = flag(128, "the vocabulary is padded to a multiple of this")
    init_method_std: float = flag(0.02, "standard deviation of the initial weights")
    attention_dropout: float = flag(0.1, "dropout of attention probabilities")
    hidden_dropout: float = flag(0.1, "dropout of the residual stream")
    transformer_impl: Literal["local", "transformer_engine"] = flag("local", "layers of megatron-core or of TE")
    num_experts: int | None = flag(None, "experts per MoE layer; absent: a dense model")
    moe_router_topk: int = flag(2, "experts per token")
    moe_ffn_hidden_size: int | None = flag(None, "inner width of an expert; default --ffn-hidden-size")
    moe_token_dispatcher_type: Literal["allgather", "alltoall"] = flag("allgather", "how tokens reach their experts")
    moe_router_load_balancing_type: Literal["aux_loss", "sinkhorn", "none"] = flag(
        "aux_loss", "how experts are balanced"
    )
    moe_aux_loss_coeff: float = flag(0.0, "weight of the balancing loss")

    def shape(self) -> dict[str, Any]:
        """The flags that decide which weights there are: a checkpoint fits only where they are the same."""
        return {name: getattr(self, name) for name in _SHAPE}


@dataclass(frozen=True, kw_only=True)
class ParallelConfig:
    """Layout."""

    tensor_model_parallel_size: int = flag(1, "ranks that share each layer")
    pipeline_model_parallel_size: int = flag(1, "pipeline stages")
    num_layers_per_virtual_pipeline_stage: int | None = flag(None, "layers per chunk of the interleaved schedule")
    num_virtual_stages_per_pipeline_rank: int | None = flag(None, "chunks per rank of the interleaved schedule")
    no_overlap_p2p_communication: bool = flag(False, "interleaved schedule: wait for each message where it is sent")
    sequence_parallel: bool = flag(False, "split norms and dropout along the sequence over the tensor ranks")
    context_parallel_size: int = flag(1, "ranks that share each sequence; needs Transformer Engine")
    expert_model_parallel_size: int = flag(1, "ranks that share the experts")
    use_distributed_optimizer: bool = flag(False, "shard the optimizer's state over the data-parallel ranks")
    overlap_grad_reduce: bool = flag(False, "reduce gradients while backward still runs")
    overlap_param_gather: bool = flag(False, "gather parameters while forward already runs")
    ddp_bucket_size: int | None = flag(None, "parameters per bucket of the gradient reduction")
    distributed_backend: Literal["nccl", "gloo"] | None = flag(None, "default nccl on GPUs, gloo on CPUs")
    distributed_timeout_minutes: float = flag(10.0, "after this a stuck collective fails")
    p2p_transport: Literal["torch", "native"] = flag("torch", "what carries messages between pipeline stages")
    workload: int | None = flag(None, "native transport: elements copied at a time, at most")
    num_gpus: int | None = flag(None, "native transport: GPUs per node, checked against the launch")
    multi_node: bool = flag(False, "native transport: with --num-gpus, allow more than one node")
    node_ips: tuple[str, ...] = flag((), "native transport: one address per rank; default: found by itself")


@dataclass(frozen=True, kw_only=True)
class TrainingConfig:
    """Training."""

    train_iters: int = required("training steps in all, those before a restart counted in")
    micro_batch_size: int = required("sequences per forward pass of one rank")
    seq_length: int = required("tokens per sequence")
    global_batch_size: int | None = flag(None, "sequences per step; default micro batch size x data-parallel size")
    seed: int = flag(1234, "seed of weights, dropout and data order", minimum=0)
    bf16: bool = flag(False, "bfloat16 weights and activations, float32 gradients and optimizer")
    recompute_granularity: Literal["full", "selective"] | None = flag(None, "compute activations again in backward")
    recompute_method: Literal["uniform", "block"] | None = flag(None, "which layers --recompute-granularity full takes")
    recompute_num_layers: int | None = flag(None, "layers per recomputed unit (uniform) or recomputed layers (block)")
    deterministic_mode: bool = flag(False, "only deterministic algorithms: a run repeats bit by bit")


@dataclass(frozen=True, kw_only=True)
class OptimizerConfig:
    """Optimizer."""

    optimizer: Literal["adam", "sgd"] = flag("adam", "optimizer")
    weight_decay: float = flag(0.01, "decoupled weight decay")
    start_weight_decay: float | None = flag(None, "weight decay at the first step; default --weight-decay")
    end_weight_decay: float | None = flag(None, "weight decay at the last step; default --weight-decay")
    weight_decay_incr_style: Literal["constant", "linear", "cosine"] = flag("constant", "how weight decay moves")
    clip_grad: float = flag(1.0, "clip gradients to this global norm; 0: never")
    adam_beta1: float = flag(0.9, "decay of the first moment")
    adam_beta2: float = flag(0.999, "decay of the second moment")
    adam_eps: float = flag(1e-8, "added to the root of the second moment")
    sgd_momentum: float = flag(0.9, "momentum of SGD")


@dataclass(frozen=True, kw_only=True)
class ScheduleConfig:
    """Learning rate."""

    lr: float = required("highest learning rate")
    min_lr: float = flag(0.0, "lowest learning rate")
    lr_decay_style: Literal["constant", "linear", "cosine", "inverse-square-root", "WSD"] = flag("linear", "decay")
    lr_decay_iters: int | None = flag(None, "steps over which it decays; default --train-iters")
    lr_warmup_iters: int = flag(0, "steps of linear warm-up", minimum=0)
    lr_warmup_fraction: float | None = flag(None, "warm-up as a part of the decay steps, in place of --lr-warmup-iters")
    lr_warmup_init: float = flag(0.0, "learning rate at which the warm-up starts")
    lr_wsd_decay_style: Literal["exponential", "linear", "cosine"] = flag("exponential", "end of WSD")
    lr_wsd_decay_iters: int | None = flag(None, "steps of WSD's end")


@dataclass(frozen=True, kw_only=True)
class DataConfig:
    """Data."""

    data_path: tuple[str, ...] = flag((), "prefix of .bin/.idx files, or a blend: weight prefix weight prefix ...")
    split: str = flag("969,30,1", "parts of the documents for training, validation and test")
    mock_data: bool = flag(False, "made-up sequences in place of --data-path, always the same")
    data_cache_path: str | None = flag(None, "folder of the sample indices; default beside the data")
    num_workers: int = flag(2, "data loader processes; 0: the training process itself", minimum=0)
    tokenizer_type: Literal["GPT2BPETokenizer", "HuggingFaceTokenizer", "ByteTokenizer", "NullTokenizer"] = flag(
        "ByteTokenizer", "tokenizer"
    )
    vocab_file: str | None = flag(None, "vocab.json of GPT2BPETokenizer")
    merge_file: str | None = flag(None, "merges.txt of GPT2BPETokenizer")
    tokenizer_model: str | None = flag(None, "tokenizer.json of HuggingFaceTokenizer, or the folder that holds it")
    vocab_size: int | None = flag(None, "vocabulary of NullTokenizer")


@dataclass(frozen=True, kw_only=True)
class EvaluationConfig:
    """Evaluation."""

    eval_interval: int = flag(1000, "steps between evaluations")
    eval_iters: int = flag(100, "batches of one evaluation; 0: never evaluate", minimum=0)


@dataclass(frozen=True, kw_only=True)
class CheckpointConfig:
    """Checkpoints."""

    save: str | None = flag(None, "folder to save to; default $MEGATRONAPP_CHECKPOINT_DIR")
    load: str | None = flag(None, "folder to load from; default the folder to save to")
    save_interval: int | None = flag(None, "steps between checkpoints; absent: only at the end and on SIGTERM")
    no_save_optim: bool = flag(False, "save without the optimizer")
    no_save_rng: bool = flag(False, "save without the random states")
    no_load_optim: bool = flag(False, "load without the optimizer")
    no_load_rng: bool = flag(False, "load without the random states")
    finetune: bool = flag(False, "load the weights alone and start at step 1")


@dataclass(frozen=True, kw_only=True)
class LoggingConfig:
    """Logging."""

    log_interval: int = flag(100, "steps between lines of the training log")
    tensorboard_dir: str | None = flag(None, "folder of TensorBoard events")


@dataclass(frozen=True, kw_only=True)
class TrainerConfig:
    """All of it, one section a concern."""

    model: ModelConfig
    parallel: ParallelConfig
    training: TrainingConfig
    optimizer: OptimizerConfig
    schedule: ScheduleConfig
    data: DataConfig
    evaluation: EvaluationConfig
    checkpoint: CheckpointConfig
    logging: LoggingConfig


SECTIONS: dict[str, type] = {
    "model": ModelConfig,
    "parallel": ParallelConfig,
    "training": TrainingConfig,
    "optimizer": OptimizerConfig,
    "schedule": ScheduleConfig,
    "data": DataConfig,
    "evaluation": EvaluationConfig,
    "checkpoint": CheckpointConfig,
    "logging": LoggingConfig,
}
