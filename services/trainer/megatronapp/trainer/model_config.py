"""The model's settings, of which config.py tells what they are."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from megatronapp.trainer.config_fields import FORWARD, OPERATION, TRAINING, flag, required


@dataclass(frozen=True, kw_only=True)
class ModelConfig:
    """Model."""

    model_type: Literal["gpt", "bert", "t5"] = flag("gpt", "family of the model", FORWARD)
    num_layers: int = required("transformer layers", FORWARD)
    decoder_num_layers: int | None = flag(None, "T5: layers of the decoder; default --num-layers", FORWARD)
    hidden_size: int = required("width of the residual stream", FORWARD)
    num_attention_heads: int = required("attention heads", FORWARD)
    ffn_hidden_size: int | None = flag(
        None, "inner width of the MLP; default 4 x hidden size, gated 2/3 of it", FORWARD
    )
    kv_channels: int | None = flag(None, "width of one attention head; default hidden size / heads", FORWARD)
    group_query_attention: bool = flag(False, "share keys and values among groups of heads", FORWARD)
    num_query_groups: int = flag(1, "number of such groups", FORWARD)
    position_embedding_type: Literal["learned_absolute", "rope", "alibi", "relative", "none"] = flag(
        "learned_absolute",
        "position embedding; alibi: a bias of attention by distance; relative: T5's, one that is learned",
        FORWARD,
    )
    relative_attention_num_buckets: int = flag(32, "relative: distances that are told apart", FORWARD, minimum=4)
    relative_attention_max_distance: int = flag(128, "relative: from here on all distances are one", FORWARD)
    softmax_scale: float | None = flag(
        None, "attention's scores are multiplied by this; default 1 / root of --kv-channels; T5's: 1", FORWARD
    )
    max_position_embeddings: int | None = flag(
        None, "longest sequence of learned positions; default --seq-length", FORWARD
    )
    rotary_base: int = flag(10_000, "base of the rotary frequencies", FORWARD)
    rotary_percent: float = flag(1.0, "part of each head that is rotated", FORWARD)
    use_rope_scaling: bool = flag(False, "rotary frequencies stretched as in Llama 3.1", FORWARD)
    rope_scaling_factor: float = flag(8.0, "by how much --use-rope-scaling stretches the lowest of them", FORWARD)
    normalization: Literal["LayerNorm", "RMSNorm"] = flag("LayerNorm", "normalization", FORWARD)
    norm_epsilon: float = flag(1e-5, "epsilon of the normalization", FORWARD)
    swiglu: bool = flag(False, "gated MLP with SiLU in place of GELU", FORWARD)
    geglu: bool = flag(False, "gated MLP with GELU", FORWARD)
    squared_relu: bool = flag(False, "the square of ReLU in place of GELU", FORWARD)
    openai_gelu: bool = flag(False, "GELU in its tanh form, as GPT-2 and, with --geglu, T5 1.1 have it", FORWARD)
    disable_bias_linear: bool = flag(False, "linear layers without bias", FORWARD)
    add_qkv_bias: bool = flag(False, "bias in the QKV projection even with --disable-bias-linear", FORWARD)
    qk_layernorm: bool = flag(False, "normalize queries and keys", FORWARD)
    untie_embeddings_and_output_weights: bool = flag(False, "an output layer with weights of its own", FORWARD)
    make_vocab_size_divisible_by: int = flag(128, "the vocabulary is padded to a multiple of this", FORWARD)
    padded_vocab_size: int | None = flag(
        None, "rows of embedding and output layer; default: by --make-vocab-size-divisible-by", FORWARD
    )
    init_method_std: float = flag(0.02, "standard deviation of the initial weights", TRAINING)
    attention_dropout: float = flag(0.1, "dropout of attention probabilities", FORWARD)
    hidden_dropout: float = flag(0.1, "dropout of the residual stream", FORWARD)
    transformer_impl: Literal["local", "transformer_engine"] = flag(
        "local", "layers of megatron-core or of TE", OPERATION
    )
    num_experts: int | None = flag(None, "experts per MoE layer; absent: a dense model", FORWARD)
    moe_router_topk: int = flag(2, "experts per token", FORWARD)
    moe_ffn_hidden_size: int | None = flag(None, "inner width of an expert; default --ffn-hidden-size", FORWARD)
    moe_shared_expert_intermediate_size: int | None = flag(
        None, "inner width, of all together, of experts that every token passes; absent: none", FORWARD
    )
    moe_token_dispatcher_type: Literal["allgather", "alltoall"] = flag(
        "allgather", "how tokens reach their experts", OPERATION
    )
    moe_grouped_gemm: bool = flag(False, "one kernel for the products of all experts of a rank", OPERATION)
    moe_router_load_balancing_type: Literal["aux_loss", "sinkhorn", "none"] = flag(
        "aux_loss", "how experts are balanced", FORWARD
    )
    bert_no_binary_head: bool = flag(False, "BERT: learn masked words alone, not the order of sentences", FORWARD)
    attention_backend: Literal["auto", "unfused", "local", "flash", "fused"] = flag(
        "auto",
        "local: megatron-core's own; flash: torch's fused kernel; unfused: the same, computed plainly; fused: "
        "Transformer Engine's; auto: local where it can do what is asked, else flash",
        OPERATION,
    )
    window_size: tuple[int, ...] = flag(
        (), "tokens before and after its own that a token sees: LEFT 0 (or LEFT,0), LEFT -1: all before", FORWARD
    )
    window_attn_skip_freq: tuple[int, ...] = flag(
        (),
        "every so many layers one sees all tokens in spite of --window-size; or of each layer, 1: its window, 0: all",
        FORWARD,
    )
    fusions: tuple[str, ...] = flag(
        (),
        "fused kernels: bias-gelu, bias-geglu, bias-swiglu, bias-dropout, cross-entropy, masked-softmax, rope, "
        "gradient-accumulation; megatron: Megatron-LM's defaults, as far as they fit and are installed",
        OPERATION,
    )
    moe_aux_loss_coeff: float = flag(0.0, "weight of the balancing loss", TRAINING)

    @property
    def gated(self) -> bool:
        """Whether the MLP's first matrix has two halves, of which the activated one multiplies the other."""
        return self.swiglu or self.geglu

    @property
    def activation(self) -> Literal["silu", "squared_relu", "gelu", "gelu_tanh"]:
        if self.swiglu:
            return "silu"
        if self.squared_relu:
            return "squared_relu"
        return "gelu_tanh" if self.openai_gelu else "gelu"
