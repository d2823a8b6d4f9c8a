"""What Transformer Engine's layers need, said before one of them is made."""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError, version

import torch
from megatron.core.utils import get_te_version, is_te_min_version

from megatronapp.core.errors import UsageError
from megatronapp.trainer.config import TrainerConfig
from megatronapp.trainer.layout import Layout
from megatronapp.trainer.models.sizes import attention_widths, decoder_length, ffn_hidden_size

OLDEST = "2.0"
"""That torch of the versions that the trainer takes is built against, and megatron-core's layers call alike."""
PUTS_OFF_WGRAD_FROM = "2.3.0"
FLASH_ATTENTION = ("flash-attn", "flash-attn-3", "flash-attn-4")
FP8_MULTIPLE = 16
"""Of what a product in 8 bits has rows and columns."""


def check(config: TrainerConfig, layout: Layout, device: torch.device) -> None:
    """Whether a model of these layers can be built and run. Raises UsageError."""
    _check_installed()
    if config.model.attention_backend == "flash" and not any(map(_is_installed, FLASH_ATTENTION)):
        raise UsageError(
            "--attention-backend flash with --transformer-impl transformer_engine needs the package flash-attn: "
            "install it, or take --attention-backend auto"
        )
    if config.training.fp8_format is not None:
        _check_fp8_sizes(config, layout)
        if device.type == "cuda":
            _check_fp8_recipe(config.training.fp8_recipe)


def puts_off_wgrad() -> bool:
    """Whether the layers can; also where none are installed, which is an error of its own."""
    try:
        import transformer_engine.pytorch  # noqa: F401
    except ImportError:
        return True
    return bool(is_te_min_version(PUTS_OFF_WGRAD_FROM))


def _check_installed() -> None:
    try:
        import transformer_engine.pytorch  # noqa: F401
    except ImportError as error:
        raise UsageError(
            "--transformer-impl transformer_engine needs Transformer Engine, which is not installed: install it or "
            "leave the flag away"
        ) from error
    if not is_te_min_version(OLDEST):
        raise UsageError(
            f"--transformer-impl transformer_engine: Transformer Engine {get_te_version()} is too old: install "
            f"{OLDEST} or newer, or leave the flag away"
        )


def _is_installed(package: str) -> bool:
    try:
        return bool(version(package))
    except PackageNotFoundError:
        return False


def _check_fp8_sizes(config: TrainerConfig, layout: Layout) -> None:
    model, training = config.model, config.training
    tokens = layout.micro_batch_size * training.seq_length // layout.context
    queries, keys = attention_widths(model)
    sizes = {
        "--micro-batch-size times --seq-length": tokens,
        "--hidden-size": model.hidden_size,
        "--ffn-hidden-size": ffn_hidden_size(model) // layout.tensor,
        "the width of queries": queries // layout.tensor,
        "the width of queries, keys and values": (queries + 2 * keys) // layout.tensor,
    }
    if model.model_type == "t5":
        sizes["--micro-batch-size times --decoder-seq-length"] = layout.micro_batch_size * decoder_length(training)
    for what, size in sizes.items():
        if size % FP8_MULTIPLE:
            raise UsageError(
                f"--fp8-format {training.fp8_format} takes multiples of {FP8_MULTIPLE}, and {what} is {size} on a "
                "rank: change it, or leave --fp8-format out"
            )


def _check_fp8_recipe(recipe: str) -> None:
    from transformer_engine.pytorch import fp8

    checks = {"mxfp8": fp8.check_mxfp8_support, "blockwise": fp8.check_fp8_block_scaling_support}
    supported, reason = checks.get(recipe, fp8.check_fp8_support)()
    if not supported:
        raise UsageError(f"--fp8-recipe {recipe} does not run here: {reason.rstrip('.')}: take another recipe")
