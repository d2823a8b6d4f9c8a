"""Kernels that do in one what else takes several: which of them a run takes, and why not others. No torch."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from importlib.util import find_spec
from typing import Any

from megatronapp.core.errors import UsageError
from megatronapp.trainer.config import TrainerConfig

MEGATRON = "megatron"
"""Those that Megatron-LM takes unless told otherwise, as far as they fit the model and are installed here."""


def chosen(config: TrainerConfig) -> frozenset[str]:
    """Of a configuration that `check_fusions` has passed."""
    asked = set(config.model.fusions)
    if MEGATRON in asked:
        asked |= {name for name in _MEGATRONS if not why_not(name, config)}
    return frozenset(asked - {MEGATRON})


def check_fusions(config: TrainerConfig) -> None:
    """Raises UsageError for a name that is none, and for what is asked for by name and can't be had."""
    for name in config.model.fusions:
        if name == MEGATRON:
            continue
        if name not in _REASONS:
            raise UsageError(f"--fusions {name!r:.40}: there are {', '.join((MEGATRON, *_REASONS))}")
        if reason := why_not(name, config):
            raise UsageError(f"--fusions {name} {reason}")


def why_not(name: str, config: TrainerConfig) -> str:
    """What goes behind the name in a message; "" where it can be had."""
    return _REASONS[name](config)


def options(config: TrainerConfig) -> dict[str, Any]:
    """As megatron-core's configuration has them; what is asked for is checked anew, as a model may be built alone."""
    check_fusions(config)
    taken = chosen(config)
    return {
        "bias_activation_fusion": bool(taken & {"bias-gelu", "bias-geglu", "bias-swiglu"}),
        "bias_dropout_fusion": "bias-dropout" in taken,
        "cross_entropy_loss_fusion": "cross-entropy" in taken,
        "masked_softmax_fusion": "masked-softmax" in taken,
        "apply_rope_fusion": "rope" in taken,
        "gradient_accumulation_fusion": "gradient-accumulation" in taken,
    }


_TANH_FORM = "computes GELU in its tanh form: give --openai-gelu with it"


def _bias_gelu(config: TrainerConfig) -> str:
    model = config.model
    if model.gated or model.squared_relu or model.disable_bias_linear or model.num_experts is not None:
        return (
            "is of a GELU behind a bias, without a gate: leave --swiglu, --geglu, --squared-relu, "
            "--disable-bias-linear and --num-experts out, or it"
        )
    return "" if model.openai_gelu else _TANH_FORM


def _bias_geglu(config: TrainerConfig) -> str:
    model = config.model
    if not model.geglu or model.num_experts is not None:
        return "is of a GeGLU without experts: give --geglu and leave --num-experts out, or leave it out"
    return "" if model.openai_gelu else _TANH_FORM


def _bias_swiglu(config: TrainerConfig) -> str:
    return "" if config.model.swiglu else "is of a SwiGLU: give --swiglu, or leave it out"


def _cross_entropy(config: TrainerConfig) -> str:
    return "" if config.training.bf16 else "computes gradients in bfloat16: give --bf16, or leave it out"


def _masked_softmax(config: TrainerConfig) -> str:
    if config.model.attention_backend not in ("auto", "local"):
        return "is of megatron-core's own attention: take --attention-backend local, or leave it out"
    return _extension("scaled_upper_triang_masked_softmax_cuda", "of Apex")


def _rope(config: TrainerConfig) -> str:
    if config.model.position_embedding_type != "rope":
        return "is of rotary positions: give --position-embedding-type rope, or leave it out"
    return _extension("transformer_engine", "(Transformer Engine)")


def _extension(module: str, origin: str) -> str:
    return "" if find_spec(module) else f"needs the extension {module} {origin}, which is not installed: leave it out"


_REASONS: Mapping[str, Callable[[TrainerConfig], str]] = {
    "bias-gelu": _bias_gelu,
    "bias-geglu": _bias_geglu,
    "bias-swiglu": _bias_swiglu,
    "bias-dropout": lambda _: "",
    "cross-entropy": _cross_entropy,
    "masked-softmax": _masked_softmax,
    "rope": _rope,
    "gradient-accumulation": lambda _: _extension("fused_weight_gradient_mlp_cuda", "of Apex"),
}
_MEGATRONS = tuple(name for name in _REASONS if name != "cross-entropy")
