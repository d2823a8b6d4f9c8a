"""megatron-core's models from the trainer's settings, one module per virtual stage; models/ has what differs."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812
from megatron.core import parallel_state
from megatron.core.distributed import DistributedDataParallel, DistributedDataParallelConfig
from megatron.core.enums import ModelType
from megatron.core.transformer.enums import AttnBackend
from megatron.core.transformer.module import Float16Module
from megatron.core.transformer.moe import moe_utils
from megatron.core.transformer.transformer_config import TransformerConfig

from megatronapp.core.errors import UsageError
from megatronapp.trainer import transformer_engine
from megatronapp.trainer.config import ParallelConfig, TrainerConfig, TrainingConfig
from megatronapp.trainer.layout import Layout
from megatronapp.trainer.model_config import ModelConfig
from megatronapp.trainer.models import family_of, fusions
from megatronapp.trainer.models.offloading import offload_layers
from megatronapp.trainer.models.protocol import ChunkPlace
from megatronapp.trainer.models.sizes import ffn_hidden_size


def transformer_config(config: TrainerConfig, layout: Layout, device: torch.device) -> TransformerConfig:
    """megatron-core's configuration. Raises UsageError for what it refuses, and where Transformer Engine is missing or
    can't do what is asked."""
    model, training = config.model, config.training
    if model.transformer_impl == "transformer_engine":
        transformer_engine.check(config, layout, device)
    dispatcher = model.moe_token_dispatcher_type
    if model.num_experts is not None and dispatcher == "alltoall" and device.type == "cpu":
        raise UsageError("--moe-token-dispatcher-type alltoall needs GPUs; on CPUs take allgather")
    dtype = torch.bfloat16 if training.bf16 else torch.float16 if training.fp16 else torch.float32
    try:
        return TransformerConfig(
            num_layers=sum(layout.layers) or [*family_of(model).depths(model).values()][-1],
            hidden_size=model.hidden_size,
            num_attention_heads=model.num_attention_heads,
            num_query_groups=model.num_query_groups if model.group_query_attention else None,
            kv_channels=model.kv_channels,
            softmax_scale=model.softmax_scale,
            ffn_hidden_size=ffn_hidden_size(model),
            normalization=model.normalization,
            layernorm_epsilon=model.norm_epsilon,
            gated_linear_unit=model.gated,
            activation_func=_activation(config),
            add_bias_linear=not model.disable_bias_linear,
            add_qkv_bias=model.add_qkv_bias,
            qk_layernorm=model.qk_layernorm,
            init_method_std=model.init_method_std,
            attention_dropout=model.attention_dropout,
            hidden_dropout=model.hidden_dropout,
            params_dtype=dtype,
            pipeline_dtype=dtype,
            bf16=training.bf16,
            fp16=training.fp16,
            attention_backend=AttnBackend[model.attention_backend],
            window_size=model.window_size or None,
            window_attn_skip_freq=_window_frequency(model),
            calculate_per_token_loss=training.calculate_per_token_loss,
            recompute_granularity=training.recompute_granularity,
            recompute_method=training.recompute_method,
            recompute_num_layers=training.recompute_num_layers,
            deterministic_mode=training.deterministic_mode,
            variable_seq_lengths=training.variable_seq_lengths,
            **_fp8_options(training),
            **fusions.options(config),
            **_layout_options(config.parallel, layout),
            **_expert_options(model),
        )
    except (ValueError, AssertionError) as error:
        raise UsageError(f"megatron-core refuses these flags: {error}") from error


def _window_frequency(model: ModelConfig) -> int | list[int] | None:
    """As megatron-core has it."""
    frequency = model.window_attn_skip_freq
    return list(frequency) if len(frequency) > 1 else frequency[0] if frequency else None


def _fp8_options(training: TrainingConfig) -> dict[str, Any]:
    if training.fp8_format is None:
        return {}
    return {
        "fp8": training.fp8_format,
        "fp8_recipe": training.fp8_recipe,
        "fp8_margin": training.fp8_margin,
        "fp8_amax_history_len": training.fp8_amax_history_len,
        "fp8_amax_compute_algo": training.fp8_amax_compute_algo,
        "fp8_wgrad": not training.no_fp8_wgrad,
    }


def _activation(config: TrainerConfig) -> Callable[[torch.Tensor], torch.Tensor]:
    if fusions.chosen(config) & {"bias-gelu", "bias-geglu"}:
        return F.gelu  # megatron-core knows the fused one, which is the tanh form, by this name
    return _ACTIVATIONS[config.model.activation]


def tanh_gelu(values: torch.Tensor) -> torch.Tensor:
    return F.gelu(values, approximate="tanh")


def squared_relu(values: torch.Tensor) -> torch.Tensor:
    """Not megatron-core's, which torch compiles anew in each process."""
    return F.relu(values).square()


_ACTIVATIONS: Mapping[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "silu": F.silu,
    "squared_relu": squared_relu,
    "gelu": F.gelu,
    "gelu_tanh": tanh_gelu,
}


def _layout_options(parallel: ParallelConfig, layout: Layout) -> dict[str, Any]:
    overlap = layout.virtual is not None and not parallel.no_overlap_p2p_communication
    return {
        "tensor_model_parallel_size": layout.tensor,
        "pipeline_model_parallel_size": layout.pipeline,
        "virtual_pipeline_model_parallel_size": layout.virtual,
        "context_parallel_size": layout.context,
        "expert_model_parallel_size": layout.expert,
        "pipeline_model_parallel_layout": _stage_layers(layout.layers),
        "num_layers_in_first_pipeline_stage": parallel.decoder_first_pipeline_num_layers,
        "num_layers_in_last_pipeline_stage": parallel.decoder_last_pipeline_num_layers,
        "sequence_parallel": parallel.sequence_parallel,
        "overlap_p2p_comm": overlap,
        # With two stages a batch of the interleaved schedule holds two messages between the same two ranks, and they
        # are matched in the wrong order: no error, wrong gradients.
        "batch_p2p_comm": not overlap and not (layout.virtual is not None and layout.pipeline == 2),
        # The schedule gives an overlapped message's memory up at once, by replacing the tensor's `.data`: a transport
        # that keeps the tensor does not keep the memory. gloo then sends wrong activations, without an error.
        "deallocate_pipeline_outputs": not overlap,
    }


def _stage_layers(layers: tuple[int, ...]) -> list[list[str]] | None:
    """As megatron-core wants it told what each stage holds."""
    if not layers:
        return None
    stages = [["decoder"] * count for count in layers]
    stages[0].insert(0, "embedding")
    stages[-1].append("loss")
    return stages


def _expert_options(model: ModelConfig) -> dict[str, Any]:
    if model.num_experts is None:
        # By default one that takes no --variable-seq-lengths, which megatron-core refuses without experts too.
        return {"moe_token_dispatcher_type": "alltoall"}
    if not hasattr(moe_utils, "te_general_gemm"):
        moe_utils.te_general_gemm = None  # without Transformer Engine the router asks for a name that is not there
    return {
        "num_moe_experts": model.num_experts,
        "moe_router_topk": model.moe_router_topk,
        "moe_ffn_hidden_size": model.moe_ffn_hidden_size or ffn_hidden_size(model),
        "moe_shared_expert_intermediate_size": model.moe_shared_expert_intermediate_size,
        "moe_grouped_gemm": model.moe_grouped_gemm,
        "moe_token_dispatcher_type": model.moe_token_dispatcher_type,
        "moe_router_load_balancing_type": model.moe_router_load_balancing_type,
        "moe_aux_loss_coeff": model.moe_aux_loss_coeff,
    }


def padded_vocabulary(size: int, model: ModelConfig, layout: Layout) -> int:
    """Vocabulary with padding, so that each tensor rank holds equally many rows.

    Not 128 x TP as in Megatron-LM: the padding takes part in the softmax, and a loss must not depend on the layout.
    Raises UsageError where --padded-vocab-size is less than the vocabulary.
    """
    if model.padded_vocab_size is None:
        multiple = math.lcm(model.make_vocab_size_divisible_by, layout.tensor)
        return -(-size // multiple) * multiple
    if model.padded_vocab_size < size:
        raise UsageError(f"--padded-vocab-size {model.padded_vocab_size} is less than the tokenizer's {size} tokens")
    return -(-model.padded_vocab_size // layout.tensor) * layout.tensor


def positions(config: TrainerConfig) -> int:
    """The longest sequence that the model takes."""
    return config.model.max_position_embeddings or config.training.seq_length


ModelProvider = Callable[[TrainerConfig, TransformerConfig, ChunkPlace], torch.nn.Module]
"""A chunk of a model of one's own, made of megatron-core's parts: as `ModelFamily.build`, with first weights."""


def build_chunks(
    config: TrainerConfig,
    transformer: TransformerConfig,
    layout: Layout,
    vocabulary: int,
    device: torch.device,
    provider: ModelProvider | None = None,
) -> list[torch.nn.Module]:
    """This rank's model chunks on `device`, one per virtual stage, not yet wrapped: the family's, or the provider's."""
    build = provider or family_of(config.model).build
    return [
        _chunk_at(_place(config, layout, vocabulary, stage), build, config, transformer, device)
        for stage in _stages(layout)
    ]


def _stages(layout: Layout) -> list[int | None]:
    return [None] if layout.virtual is None else list(range(layout.virtual))


def _place(config: TrainerConfig, layout: Layout, vocabulary: int, stage: int | None) -> ChunkPlace:
    return ChunkPlace(
        stage=stage,
        first=parallel_state.is_pipeline_first_stage(ignore_virtual=False, vp_stage=stage),
        last=layout.head and parallel_state.is_pipeline_last_stage(ignore_virtual=False, vp_stage=stage),
        tied=layout.head and not config.model.untie_embeddings_and_output_weights,
        vocabulary=padded_vocabulary(vocabulary, config.model, layout),
        positions=positions(config),
    )


def _chunk_at(
    place: ChunkPlace,
    build: ModelProvider,
    config: TrainerConfig,
    transformer: TransformerConfig,
    device: torch.device,
) -> torch.nn.Module:
    chunk = build(config, transformer, place)
    if config.training.cpu_offloading_num_layers is not None:
        offload_layers(chunk, config.training.cpu_offloading_num_layers)
    chunk.model_type = ModelType.encoder_or_decoder
    return chunk.to(device)


def wrap(
    chunks: list[torch.nn.Module], transformer: TransformerConfig, parallel: ParallelConfig
) -> list[DistributedDataParallel]:
    """Chunks with 16-bit weights where asked for, and gradient buffers that are reduced over the data ranks."""
    options = DistributedDataParallelConfig(
        grad_reduce_in_fp32=not parallel.grad_reduce_in_bf16,
        overlap_grad_reduce=parallel.overlap_grad_reduce,
        overlap_param_gather=parallel.overlap_param_gather,
        use_distributed_optimizer=parallel.use_distributed_optimizer,
        bucket_size=parallel.ddp_bucket_size,
        delay_wgrad_compute=transformer.delay_wgrad_compute,
    )
    return [
        DistributedDataParallel(transformer, options, chunk, disable_bucketing=index > 0)
        for index, chunk in enumerate(lowered(chunks, transformer))
    ]


def lowered(chunks: list[torch.nn.Module], transformer: TransformerConfig) -> list[torch.nn.Module]:
    """Chunks with 16-bit weights where asked for."""
    lower = transformer.bf16 or transformer.fp16
    return [Float16Module(transformer, chunk) if lower else chunk for chunk in chunks]
