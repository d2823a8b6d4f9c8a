"""How a world of ranks is cut into tensor, context, expert, data and pipeline groups: arithmetic, no torch.

Every combination of flags that megatron-core would meet with a hang, a late assertion or wrong numbers is refused or
avoided here, before the first process group exists.
"""

from __future__ import annotations

from dataclasses import dataclass

from megatronapp.core.errors import UsageError
from megatronapp.core.trace.values import ParallelSizes
from megatronapp.trainer.batch_ramp import BatchRamp
from megatronapp.trainer.config import ParallelConfig, TrainerConfig
from megatronapp.trainer.model_config import ModelConfig
from megatronapp.trainer.models.attention_choice import check_attention
from megatronapp.trainer.models.fusions import check_fusions
from megatronapp.trainer.models.limits import check_family
from megatronapp.trainer.models.sizes import decoder_layers, ffn_hidden_size


@dataclass(frozen=True, kw_only=True)
class Layout:
    """Sizes of all parallel axes. `virtual` is the number of chunks per rank, None without interleaving.

    `layers` are those of each stage where they are not all of the model, or not the same number on each; `head` False:
    the model ends with them, without the output layer and the loss.
    """

    world: int
    tensor: int
    pipeline: int
    virtual: int | None
    context: int
    expert: int
    data: int
    microbatches: int
    micro_batch_size: int
    global_batch_size: int
    layers: tuple[int, ...] = ()
    head: bool = True

    @property
    def ranks(self) -> int:
        """How many ranks the axes need."""
        return self.tensor * self.context * self.pipeline * self.data

    @property
    def schedule(self) -> str:
        if self.pipeline == 1:
            return "none"
        return "interleaved" if self.virtual else "1f1b"

    def sizes(self, world: int) -> ParallelSizes:
        """As they are told of a rank; world: the job's ranks, of all its worlds."""
        return ParallelSizes(
            world=world,
            tensor=self.tensor,
            pipeline=self.pipeline,
            data=self.data,
            context=self.context,
            expert=self.expert,
            virtual_pipeline=self.virtual or 1,
        )

    @classmethod
    def of(cls, config: TrainerConfig, world_size: int) -> Layout:
        """Raises UsageError where sizes don't divide or flags contradict each other."""
        parallel = config.parallel
        virtual = _virtual_stages(config.model, parallel)
        model_ranks = (
            parallel.tensor_model_parallel_size * parallel.pipeline_model_parallel_size * parallel.context_parallel_size
        )
        if world_size % model_ranks:
            raise UsageError(
                f"{world_size} ranks can't be divided into groups of {model_ranks} (tensor "
                f"{parallel.tensor_model_parallel_size} x pipeline {parallel.pipeline_model_parallel_size} x context "
                f"{parallel.context_parallel_size}); start a multiple of {model_ranks} ranks or lower these sizes"
            )
        data = world_size // model_ranks
        micro = config.training.micro_batch_size
        batch = config.training.global_batch_size or micro * data
        if batch % (micro * data):
            raise UsageError(
                f"--global-batch-size {batch} is no multiple of --micro-batch-size {micro} x {data} data-parallel ranks"
            )
        check_family(config)
        _check_model(config.model, parallel, config.training.seq_length)
        _check_experts(config.model, parallel, world_size)
        _check_grouped_experts(config)
        _check_recompute(config)
        _check_offloading(config)
        _check_optimizer(config)
        _check_precision(config)
        check_attention(config)
        check_fusions(config)
        if config.training.skip_train and not config.evaluation.eval_iters:
            raise UsageError("--skip-train only evaluates, and --eval-iters 0 never does: leave one of them out")
        if config.evaluation.early_stop_patience and not config.evaluation.eval_iters:
            raise UsageError("--early-stop-patience counts evaluations, and --eval-iters 0 never evaluates")
        layout = cls(
            world=world_size,
            tensor=parallel.tensor_model_parallel_size,
            pipeline=parallel.pipeline_model_parallel_size,
            virtual=virtual,
            context=parallel.context_parallel_size,
            expert=parallel.expert_model_parallel_size,
            data=data,
            microbatches=batch // (micro * data),
            micro_batch_size=micro,
            global_batch_size=batch,
        )
        if virtual and layout.microbatches % layout.pipeline:
            raise UsageError(
                f"the interleaved schedule needs microbatches ({layout.microbatches}) in a multiple of the pipeline "
                f"stages ({layout.pipeline}); change --global-batch-size"
            )
        _check_ramp(config, layout)
        return layout


FIRST, LAST = "--decoder-first-pipeline-num-layers", "--decoder-last-pipeline-num-layers"


def stage_layers(model: ModelConfig, parallel: ParallelConfig) -> set[int]:
    """How many layers pipeline stages have. Raises UsageError where those that are left can't be shared equally."""
    stages = parallel.pipeline_model_parallel_size
    asked = {FIRST: parallel.decoder_first_pipeline_num_layers, LAST: parallel.decoder_last_pipeline_num_layers}
    given = {flag: layers for flag, layers in asked.items() if layers is not None}
    if given and stages < 2:
        raise UsageError(f"{' and '.join(given)} need --pipeline-model-parallel-size 2 or more")
    others, left = stages - len(given), model.num_layers - sum(given.values())
    if not given and left % others:
        raise UsageError(
            f"--num-layers {left} is no multiple of {stages} pipeline stages: change it, "
            f"--pipeline-model-parallel-size, or give {FIRST} or {LAST}"
        )
    if left < others or (left % others if others else left):
        raise UsageError(
            f"{' and '.join(given)} leave {max(left, 0)} of {model.num_layers} layers to {others} other pipeline "
            f"stages, which must have equally many, at least one each: change {' or '.join(given)}"
        )
    return {*given.values(), *([left // others] if others else [])}


def _virtual_stages(model: ModelConfig, parallel: ParallelConfig) -> int | None:
    of_stages = stage_layers(model, parallel)
    per_chunk = parallel.num_layers_per_virtual_pipeline_stage
    chunks = parallel.num_virtual_stages_per_pipeline_rank
    if per_chunk is None and chunks is None:
        return None
    if per_chunk is not None and chunks is not None:
        raise UsageError(
            "give --num-layers-per-virtual-pipeline-stage or --num-virtual-stages-per-pipeline-rank, not both"
        )
    if parallel.pipeline_model_parallel_size < 2:
        raise UsageError("virtual pipeline stages need --pipeline-model-parallel-size 2 or more")
    if per_chunk and len(of_stages) > 1:
        raise UsageError(
            "stages of different sizes have chunks of different sizes: give --num-virtual-stages-per-pipeline-rank in "
            "place of --num-layers-per-virtual-pipeline-stage"
        )
    divisor = per_chunk or chunks or 0
    flag = "--num-layers-per-virtual-pipeline-stage" if per_chunk else "--num-virtual-stages-per-pipeline-rank"
    for layers in sorted(of_stages):
        if divisor < 1 or layers % divisor:
            raise UsageError(
                f"{layers} layers per stage can't be cut into virtual stages by {flag} {divisor}: change it"
            )
    virtual = max(of_stages) // per_chunk if per_chunk else chunks
    return virtual if virtual != 1 else None


def _check_activation(model: ModelConfig) -> None:
    given = [f"--{name.replace('_', '-')}" for name in ("swiglu", "geglu", "squared_relu") if getattr(model, name)]
    if len(given) > 1:
        raise UsageError(f"{' and '.join(given)} are different MLPs: give one of them")


def _check_width(model: ModelConfig, tensor: int) -> None:
    flag, width = "--ffn-hidden-size", ffn_hidden_size(model)
    if model.num_experts is not None and model.moe_ffn_hidden_size is not None:
        flag, width = "--moe-ffn-hidden-size", model.moe_ffn_hidden_size
    if width % tensor:
        raise UsageError(f"{flag} {width} can't be split over {tensor} tensor ranks: give a multiple of {tensor}")


def _check_model(model: ModelConfig, parallel: ParallelConfig, sequence_length: int) -> None:
    tensor = parallel.tensor_model_parallel_size
    groups = model.num_query_groups if model.group_query_attention else model.num_attention_heads
    if model.kv_channels is None and model.hidden_size % model.num_attention_heads:
        raise UsageError(f"--hidden-size {model.hidden_size} is no multiple of {model.num_attention_heads} heads")
    if model.num_attention_heads % groups:
        raise UsageError(f"{model.num_attention_heads} heads can't share {groups} query groups evenly")
    if model.num_attention_heads % tensor or (groups % tensor and tensor % groups):
        raise UsageError(
            f"{model.num_attention_heads} attention heads in {groups} groups can't be split over {tensor} tensor ranks"
        )
    _check_activation(model)
    _check_width(model, tensor)
    if parallel.sequence_parallel and tensor == 1:
        raise UsageError("--sequence-parallel needs --tensor-model-parallel-size 2 or more")
    _check_sequence(parallel, sequence_length)
    if model.max_position_embeddings is not None and model.max_position_embeddings < sequence_length:
        raise UsageError(
            f"--max-position-embeddings {model.max_position_embeddings} is less than --seq-length {sequence_length}"
        )
    if parallel.overlap_param_gather and not (parallel.use_distributed_optimizer and parallel.overlap_grad_reduce):
        raise UsageError("--overlap-param-gather needs --use-distributed-optimizer and --overlap-grad-reduce")


def _check_sequence(parallel: ParallelConfig, length: int) -> None:
    context, tensor = parallel.context_parallel_size, parallel.tensor_model_parallel_size
    pieces = 2 * context
    if context > 1 and length % pieces:
        raise UsageError(
            f"--seq-length {length} can't be shared by {context} context-parallel ranks: give a multiple of {pieces}"
        )
    if parallel.sequence_parallel and length // context % tensor:
        part = f"{length}" if context == 1 else f"{length} / {context} context-parallel ranks"
        raise UsageError(f"--seq-length {part} can't be split over {tensor} tensor ranks")


def _check_experts(model: ModelConfig, parallel: ParallelConfig, world_size: int) -> None:
    expert = parallel.expert_model_parallel_size
    if model.num_experts is None:
        if expert > 1:
            raise UsageError("--expert-model-parallel-size needs --num-experts")
        if model.moe_shared_expert_intermediate_size is not None:
            raise UsageError("--moe-shared-expert-intermediate-size needs --num-experts")
        if model.moe_grouped_gemm:
            raise UsageError("--moe-grouped-gemm needs --num-experts")
        return
    if not model.disable_bias_linear:
        raise UsageError("--num-experts needs --disable-bias-linear: megatron-core's experts can't train with a bias")
    if model.num_experts % expert:
        raise UsageError(f"--num-experts {model.num_experts} can't be split over {expert} expert-parallel ranks")
    if (model.moe_shared_expert_intermediate_size or 0) % parallel.tensor_model_parallel_size:
        raise UsageError(
            f"--moe-shared-expert-intermediate-size {model.moe_shared_expert_intermediate_size} can't be split over "
            f"{parallel.tensor_model_parallel_size} tensor ranks"
        )
    if model.moe_router_topk > model.num_experts:
        raise UsageError(f"--moe-router-topk {model.moe_router_topk} is more than {model.num_experts} experts")
    grid = parallel.tensor_model_parallel_size * parallel.pipeline_model_parallel_size * expert
    if world_size % grid:
        raise UsageError(
            f"{world_size} ranks can't be divided into groups of {grid} (tensor x pipeline x expert-parallel ranks)"
        )
    if parallel.tensor_model_parallel_size > 1 and not parallel.sequence_parallel:
        raise UsageError("experts with --tensor-model-parallel-size 2 or more need --sequence-parallel")


def _check_grouped_experts(config: TrainerConfig) -> None:
    """The kernel wants rows of whole pieces of 16 bytes."""
    model, tensor = config.model, config.parallel.tensor_model_parallel_size
    if not model.moe_grouped_gemm or model.transformer_impl != "local":
        return
    piece = 8 if config.training.bf16 or config.training.fp16 else 4
    inner = model.moe_ffn_hidden_size or ffn_hidden_size(model)
    if inner % (piece * tensor) or model.hidden_size % piece:
        raise UsageError(
            f"--moe-grouped-gemm needs a --hidden-size that is a multiple of {piece}, not {model.hidden_size}, and an "
            f"inner width of experts that is one of {piece * tensor}, not {inner} (--moe-ffn-hidden-size)"
        )


def _check_recompute(config: TrainerConfig) -> None:
    training = config.training
    if training.recompute_granularity == "full":
        if training.recompute_method is None or training.recompute_num_layers is None:
            raise UsageError("--recompute-granularity full needs --recompute-method and --recompute-num-layers")
        return
    if training.recompute_method is not None or training.recompute_num_layers is not None:
        raise UsageError("--recompute-method and --recompute-num-layers belong to --recompute-granularity full")


def _check_offloading(config: TrainerConfig) -> None:
    model, count = config.model, config.training.cpu_offloading_num_layers
    if count is None:
        return
    if count > max(model.num_layers, decoder_layers(model)):
        raise UsageError(f"--cpu-offloading-num-layers {count} is more than --num-layers {model.num_layers}")
    if config.training.recompute_granularity is not None:
        raise UsageError(
            "--recompute-granularity leaves nothing for --cpu-offloading-num-layers to hold: leave one out"
        )
    if model.transformer_impl != "local":
        raise UsageError("--cpu-offloading-num-layers needs megatron-core's own layers: give --transformer-impl local")


def _check_optimizer(config: TrainerConfig) -> None:
    settings = config.optimizer
    if settings.optimizer_cpu_offload and settings.optimizer != "adam":
        raise UsageError("--optimizer-cpu-offload holds Adam's state: take --optimizer adam, or leave it out")
    if not 0 < settings.optimizer_offload_fraction <= 1:
        raise UsageError(
            f"--optimizer-offload-fraction {settings.optimizer_offload_fraction} must be above 0, and 1 at most"
        )
    if config.parallel.use_distributed_optimizer and config.optimizer.optimizer != "adam":
        raise UsageError(
            f"--use-distributed-optimizer can't shard --optimizer {config.optimizer.optimizer}: take --optimizer adam, "
            "or leave --use-distributed-optimizer out"
        )


def _check_precision(config: TrainerConfig) -> None:
    training = config.training
    if training.fp16 and training.bf16:
        raise UsageError("give --fp16 or --bf16, not both")
    if training.fp8_format is None:
        return
    if config.model.transformer_impl != "transformer_engine":
        raise UsageError(
            f"--fp8-format {training.fp8_format} is computed by Transformer Engine: install it (pip install "
            "'transformer-engine[pytorch]') and give --transformer-impl transformer_engine, or leave the flag out"
        )
    if not training.bf16:
        raise UsageError(f"--fp8-format {training.fp8_format} is for products of bfloat16: give --bf16")


def _check_ramp(config: TrainerConfig, layout: Layout) -> None:
    part = layout.micro_batch_size * layout.data
    for size in BatchRamp.of(config.training, layout.global_batch_size).sizes:
        if size % part or (layout.virtual and size // part % layout.pipeline):
            raise UsageError(
                f"--rampup-batch-size comes to {size} sequences, which {layout.data} data-parallel ranks can't share "
                f"in microbatches of {layout.micro_batch_size}"
                + (f" in a multiple of {layout.pipeline}" if layout.virtual else "")
                + ": change the first size or the increment"
            )
