"""The trainer's settings. Every field is one flag of the command line, named and meant as in Megatron-LM:
`hidden_size` is `--hidden-size`. The parser, docs/trainer.md and these classes can't differ, as the first two are
made from the third (arguments.py). Those of the model are in model_config.py.

Sizes are elements, batch sizes are sequences, intervals are training steps.
"""

from __future__ import annotations

import argparse
import dataclasses
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from megatronapp.core.errors import UsageError
from megatronapp.trainer.config_fields import FORWARD, MINIMUM, OPERATION, TRAINING, flag, flag_name, required
from megatronapp.trainer.model_config import ModelConfig

if TYPE_CHECKING:
    from typing import Self


@dataclass(frozen=True, kw_only=True)
class ParallelConfig:
    """Layout."""

    tensor_model_parallel_size: int = flag(1, "ranks that share each layer", OPERATION)
    pipeline_model_parallel_size: int = flag(1, "pipeline stages", OPERATION)
    decoder_first_pipeline_num_layers: int | None = flag(
        None, "layers of the first pipeline stage; stages without a number of their own share the rest", OPERATION
    )
    decoder_last_pipeline_num_layers: int | None = flag(None, "layers of the last pipeline stage", OPERATION)
    num_layers_per_virtual_pipeline_stage: int | None = flag(
        None, "layers per chunk of the interleaved schedule", OPERATION
    )
    num_virtual_stages_per_pipeline_rank: int | None = flag(
        None, "chunks per rank of the interleaved schedule", OPERATION
    )
    no_overlap_p2p_communication: bool = flag(
        False, "interleaved schedule: wait for each message where it is sent", OPERATION
    )
    sequence_parallel: bool = flag(False, "split norms and dropout along the sequence over the tensor ranks", OPERATION)
    context_parallel_size: int = flag(1, "ranks that share each sequence", OPERATION)
    expert_model_parallel_size: int = flag(1, "ranks that share the experts", OPERATION)
    use_distributed_optimizer: bool = flag(False, "shard the optimizer's state over the data-parallel ranks", OPERATION)
    overlap_grad_reduce: bool = flag(False, "reduce gradients while backward still runs", OPERATION)
    overlap_param_gather: bool = flag(False, "gather parameters while forward already runs", OPERATION)
    grad_reduce_in_bf16: bool = flag(False, "reduce gradients in bfloat16, not in float32", TRAINING)
    ddp_bucket_size: int | None = flag(None, "parameters per bucket of the gradient reduction", OPERATION)
    distributed_backend: Literal["nccl", "gloo"] | None = flag(None, "default nccl on GPUs, gloo on CPUs", OPERATION)
    distributed_timeout_minutes: float = flag(10.0, "after this a stuck collective fails", OPERATION)
    p2p_transport: Literal["torch", "native"] = flag(
        "torch", "what carries messages between pipeline stages", OPERATION
    )
    workload: int | None = flag(None, "native transport: elements copied at a time, at most", OPERATION)
    num_gpus: int | None = flag(None, "native transport: GPUs per node, checked against the launch", OPERATION)
    multi_node: bool = flag(False, "native transport: with --num-gpus, allow more than one node", OPERATION)
    node_ips: tuple[str, ...] = flag((), "native transport: one address per rank; default: detected", OPERATION)


@dataclass(frozen=True, kw_only=True)
class TrainingConfig:
    """Training."""

    train_iters: int = required("total training steps, including those before a restart", TRAINING)
    micro_batch_size: int = required("sequences per forward pass of one rank", TRAINING)
    seq_length: int = required("tokens per sequence", TRAINING)
    decoder_seq_length: int | None = flag(
        None, "T5: tokens per sequence of the decoder; default --seq-length", TRAINING
    )
    variable_seq_lengths: bool = flag(
        False,
        "cut each microbatch to its longest sequence, in place of padding all to --seq-length; GPT and BERT",
        TRAINING,
    )
    global_batch_size: int | None = flag(
        None, "sequences per step; default micro batch size x data-parallel size", TRAINING
    )
    rampup_batch_size: tuple[int, ...] = flag(
        (), "let the batch grow to --global-batch-size: first size, increment, samples over which it grows", TRAINING
    )
    calculate_per_token_loss: bool = flag(False, "weigh each token of a step alike; default: each microbatch", TRAINING)
    train_step: str | None = flag(
        None, "package.module:Class of the loss, a child of GPTTrainStep, BertTrainStep or T5TrainStep", TRAINING
    )
    train_step_kwargs: str | None = flag(None, "its arguments, a JSON object", TRAINING)
    nan_policy: Literal["stop", "skip", "rollback"] = flag(
        "stop",
        "where the loss is no number: stop; skip: leave such a step's gradients out; rollback: also take weights and "
        "optimizer of the newest checkpoint, and go on with the data that follow",
        TRAINING,
    )
    skip_train: bool = flag(False, "only evaluate", OPERATION)
    exit_interval: int | None = flag(None, "end, with a checkpoint, after a step that is a multiple of this", OPERATION)
    exit_duration_in_mins: float | None = flag(None, "end, with a checkpoint, after so many minutes", OPERATION)
    seed: int = flag(1234, "seed of weights, dropout and data order", TRAINING, minimum=0)
    bf16: bool = flag(False, "bfloat16 weights and activations, float32 gradients and optimizer", FORWARD)
    fp16: bool = flag(False, "float16 weights and activations, float32 gradients, scaled loss", FORWARD)
    loss_scale: float | None = flag(None, "fp16: a fixed scale of the loss; default: adapted to overflows", TRAINING)
    initial_loss_scale: float = flag(2.0**32, "fp16: the scale at the start", TRAINING)
    min_loss_scale: float = flag(1.0, "fp16: the least scale", TRAINING)
    loss_scale_window: float = flag(1000.0, "fp16: steps without overflow after which the scale doubles", TRAINING)
    hysteresis: int = flag(2, "fp16: overflows before the scale is halved", TRAINING)
    fp8_format: Literal["e4m3", "hybrid"] | None = flag(
        None, "products in 8 bits, by Transformer Engine; hybrid: gradients in e5m2", TRAINING
    )
    fp8_recipe: Literal["delayed", "tensorwise", "mxfp8", "blockwise"] = flag(
        "delayed", "fp8: what a scale is for, and from which values it is taken", TRAINING
    )
    fp8_margin: int = flag(0, "fp8: a scale is lower by so many powers of two", TRAINING, minimum=0)
    fp8_amax_history_len: int = flag(1, "fp8, delayed: passes whose greatest values are kept", TRAINING)
    fp8_amax_compute_algo: Literal["most_recent", "max"] = flag(
        "most_recent", "fp8, delayed: which of these a scale is taken from", TRAINING
    )
    no_fp8_wgrad: bool = flag(False, "fp8: gradients of weights are computed in 16 bits", TRAINING)
    recompute_granularity: Literal["full", "selective"] | None = flag(
        None, "compute activations again in backward", OPERATION
    )
    recompute_method: Literal["uniform", "block"] | None = flag(
        None, "which layers --recompute-granularity full takes", OPERATION
    )
    recompute_num_layers: int | None = flag(
        None, "layers per recomputed unit (uniform) or recomputed layers (block)", OPERATION
    )
    cpu_offloading_num_layers: int | None = flag(
        None, "layers, from the first, whose activations wait in the host's memory for their backward pass", OPERATION
    )
    deterministic_mode: bool = flag(False, "only deterministic algorithms: a run repeats bit by bit", OPERATION)


@dataclass(frozen=True, kw_only=True)
class OptimizerConfig:
    """Optimizer."""

    optimizer: Literal["adam", "sgd"] = flag("adam", "optimizer", TRAINING)
    weight_decay: float = flag(0.01, "decoupled weight decay", TRAINING)
    start_weight_decay: float | None = flag(None, "weight decay at the first step; default --weight-decay", TRAINING)
    end_weight_decay: float | None = flag(None, "weight decay at the last step; default --weight-decay", TRAINING)
    weight_decay_incr_style: Literal["constant", "linear", "cosine"] = flag(
        "constant", "how weight decay moves", TRAINING
    )
    clip_grad: float = flag(1.0, "clip gradients to this global norm; 0: never", TRAINING)
    adam_beta1: float = flag(0.9, "decay of the first moment", TRAINING)
    adam_beta2: float = flag(0.999, "decay of the second moment", TRAINING)
    adam_eps: float = flag(1e-8, "added to the root of the second moment", TRAINING)
    sgd_momentum: float = flag(0.9, "momentum of SGD", TRAINING)
    optimizer_cpu_offload: bool = flag(
        False, "Adam's moments wait in the host's memory, where its step is taken", OPERATION
    )
    optimizer_offload_fraction: float = flag(1.0, "part of the weights whose moments do so", OPERATION)


@dataclass(frozen=True, kw_only=True)
class ScheduleConfig:
    """Learning rate."""

    lr: float = required("highest learning rate", TRAINING)
    min_lr: float = flag(0.0, "lowest learning rate", TRAINING)
    lr_decay_style: Literal["constant", "linear", "cosine", "inverse-square-root", "WSD"] = flag(
        "linear", "decay", TRAINING
    )
    lr_decay_iters: int | None = flag(None, "steps over which it decays; default --train-iters", TRAINING)
    lr_warmup_iters: int = flag(0, "steps of linear warm-up", TRAINING, minimum=0)
    lr_warmup_fraction: float | None = flag(
        None, "warm-up as a part of the decay steps, in place of --lr-warmup-iters", TRAINING
    )
    lr_warmup_init: float = flag(0.0, "learning rate at which the warm-up starts", TRAINING)
    lr_wsd_decay_style: Literal["exponential", "linear", "cosine"] = flag("exponential", "end of WSD", TRAINING)
    lr_wsd_decay_iters: int | None = flag(None, "steps of WSD's end", TRAINING)


@dataclass(frozen=True, kw_only=True)
class DataConfig:
    """Data."""

    data_path: tuple[str, ...] = flag(
        (), "prefix of .bin/.idx files, or a blend: weight prefix weight prefix ...", TRAINING
    )
    train_data_path: tuple[str, ...] = flag((), "the same for training alone, in place of --data-path", TRAINING)
    valid_data_path: tuple[str, ...] = flag((), "for validation alone", TRAINING)
    test_data_path: tuple[str, ...] = flag((), "for test alone", TRAINING)
    data_args_path: str | None = flag(None, "file that holds what --data-path takes", TRAINING)
    per_split_data_args_path: str | None = flag(
        None, "JSON file of train, valid and test, each with what --data-path takes", TRAINING
    )
    split: str = flag("969,30,1", "parts of the documents for training, validation and test", TRAINING)
    mock_data: bool = flag(False, "made-up sequences in place of --data-path, always the same", TRAINING)
    data_cache_path: str | None = flag(None, "folder of the sample indices; default beside the data", OPERATION)
    reset_attention_mask: bool = flag(False, "GPT: tokens see their own document alone", TRAINING)
    reset_position_ids: bool = flag(False, "GPT: positions are counted anew in each document", TRAINING)
    eod_mask_loss: bool = flag(False, "GPT: learn nothing from what follows the end of a document", TRAINING)
    no_mmap_bin_files: bool = flag(False, "read the .bin files, do not map them into memory", OPERATION)
    num_workers: int = flag(2, "data loader processes; 0: the training process itself", OPERATION, minimum=0)
    mask_prob: float = flag(0.15, "BERT and T5: part of the words that are masked", TRAINING)
    short_seq_prob: float = flag(0.1, "BERT and T5: part of the samples that are shorter than the sequence", TRAINING)
    tokenizer_type: Literal[
        "GPT2BPETokenizer",
        "HuggingFaceTokenizer",
        "SentencePieceTokenizer",
        "Llama2Tokenizer",
        "TikTokenizer",
        "BertWordPieceLowerCase",
        "BertWordPieceCase",
        "ByteTokenizer",
        "NullTokenizer",
    ] = flag("ByteTokenizer", "tokenizer", FORWARD)
    vocab_file: str | None = flag(
        None, "vocab.json of GPT2BPETokenizer, vocab.txt of BertWordPieceLowerCase and BertWordPieceCase", OPERATION
    )
    vocab_extra_ids: int = flag(
        0,
        "tokens of no word, added to vocab.txt or a T5's spiece.model: T5 marks with them what was cut out",
        FORWARD,
        minimum=0,
    )
    merge_file: str | None = flag(None, "merges.txt of GPT2BPETokenizer", OPERATION)
    tokenizer_model: str | None = flag(
        None,
        "tokenizer.json of HuggingFaceTokenizer, or its folder; tokenizer.model of SentencePiece or Llama 3",
        OPERATION,
    )
    vocab_size: int | None = flag(None, "vocabulary of NullTokenizer", FORWARD)


@dataclass(frozen=True, kw_only=True)
class EvaluationConfig:
    """Evaluation."""

    eval_interval: int = flag(1000, "steps between evaluations", OPERATION)
    eval_iters: int = flag(100, "batches of one evaluation; 0: never evaluate", OPERATION, minimum=0)
    early_stop_patience: int | None = flag(
        None,
        "end, with a checkpoint, after so many evaluations in a row without a lower loss; counted anew on resume",
        OPERATION,
    )


@dataclass(frozen=True, kw_only=True)
class CheckpointConfig:
    """Checkpoints."""

    save: str | None = flag(None, "folder to save to; default $MEGATRONAPP_CHECKPOINT_DIR", OPERATION)
    load: str | None = flag(None, "folder to load from; default the folder to save to", OPERATION)
    save_interval: int | None = flag(
        None, "steps between checkpoints; absent: only at the end and on SIGTERM", OPERATION
    )
    async_save: bool = flag(False, "write checkpoints while training goes on, from a copy in memory", OPERATION)
    keep_last: int | None = flag(None, "keep only so many checkpoints, the newest; default: all", OPERATION)
    use_checkpoint_args: bool = flag(False, "take the model's flags and the tokenizer from the checkpoint", OPERATION)
    ckpt_format: Literal["torch_dist"] = flag("torch_dist", "format of checkpoints", OPERATION)
    no_save_optim: bool = flag(False, "save without the optimizer", OPERATION)
    no_save_rng: bool = flag(False, "save without the random states", OPERATION)
    no_load_optim: bool = flag(False, "load without the optimizer", OPERATION)
    no_load_rng: bool = flag(False, "load without the random states", OPERATION)
    finetune: bool = flag(False, "load only the weights and start at step 1", OPERATION)


@dataclass(frozen=True, kw_only=True)
class LoggingConfig:
    """Logging."""

    log_interval: int = flag(100, "steps between lines of the training log", OPERATION)
    tensorboard_dir: str | None = flag(None, "folder of TensorBoard events", OPERATION)
    wandb_project: str | None = flag(
        None, "project of Weights & Biases to log to; without a network: WANDB_MODE=offline", OPERATION
    )
    wandb_entity: str | None = flag(None, "whose project; default: that of the W&B key", OPERATION)
    wandb_exp_name: str | None = flag(None, "name of the run in W&B; default: W&B makes one up", OPERATION)
    wandb_save_dir: str | None = flag(None, "folder of W&B's files; default ./wandb", OPERATION)


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

    @classmethod
    def of(cls, namespace: argparse.Namespace) -> Self:
        """From flags that were read."""
        sections = {
            name: section(**{f.name: _value(f, getattr(namespace, f.name)) for f in dataclasses.fields(section)})
            for name, section in SECTIONS.items()
        }
        return cls(**sections)


def _value(field: dataclasses.Field[Any], value: Any) -> Any:
    """The field's value. Raises UsageError for a number below the field's minimum."""
    if isinstance(value, list):
        return tuple(value)
    if isinstance(value, int | float) and not isinstance(value, bool):
        minimum = field.metadata[MINIMUM]
        least = (1 if isinstance(value, int) else 0) if minimum is None else minimum
        if not value >= least:
            raise UsageError(f"{flag_name(field)} {value} is too small: the least is {least}")
    return value


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
