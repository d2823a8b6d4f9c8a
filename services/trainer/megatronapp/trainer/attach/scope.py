"""MegaScope on somebody's model of megatron-core: the trainer's plug-in, made when the model is seen, and the borders
at which it acts."""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from megatronapp.core.errors import UsageError
from megatronapp.core.trace.values import Phase
from megatronapp.trainer.attach.messages import say_once
from megatronapp.trainer.borders import Border, Borders

if TYPE_CHECKING:
    from megatronapp.trainer.plugins.base import Plugin, PluginContext
    from megatronapp.trainer.plugins.chain import PluginChain


class LateScope:
    """Of one rank."""

    def __init__(self, flags: argparse.Namespace, context: PluginContext, borders: Borders) -> None:
        """`context` has the channel for frames, and asks `borders` for one."""
        self._flags = flags
        self._context = context
        self._borders = borders

    def make(self, chunks: Sequence[Any], given: Mapping[str, Any]) -> Plugin | None:
        """The plug-in, which has seen the model; None where it can't be, which is said. `chunks`: as the script has
        them, wrapped; `given`: what its schedule was called with, where that is known."""
        try:
            return self._made(chunks, given)
        except Exception as error:  # noqa: BLE001  (the script is not ours to stop)
            say_once(f"MegaScope is left out: {error or type(error).__name__}")
            return None

    def _made(self, chunks: Sequence[Any], given: Mapping[str, Any]) -> Plugin | None:
        from megatron.core.utils import unwrap_model

        from megatronapp.trainer.plugins.scope.plugin import ScopePlugin

        models = unwrap_model(list(chunks))
        if reason := unseen(chunks, models):
            raise UsageError(reason)
        known = self._context.schedule
        schedule = replace(
            known,
            microbatches=known.microbatches or given.get("num_microbatches", 0),
            micro_batch_size=known.micro_batch_size or given.get("micro_batch_size", 0),
            sequence_length=known.sequence_length or given.get("seq_length", 0),
        )
        overlap = any(chunk.ddp_config.overlap_param_gather for chunk in chunks if hasattr(chunk, "ddp_config"))
        flags = argparse.Namespace(**{**vars(self._flags), "overlap_param_gather": overlap})
        plugin = ScopePlugin.create(flags, replace(self._context, schedule=schedule))
        if plugin is not None:
            plugin.models(models)
        return plugin

    def after(self, step: int, chain: PluginChain, chunks: Sequence[Any]) -> bool:
        """The step's end, on every rank: a border, where one of them has asked for it. Returns whether there may be
        another one."""
        try:
            border = self._borders.after(step)
            if Border.PLUGINS in border or chain.border_due(step):
                _border(step, chain, chunks)
        except Exception as error:  # noqa: BLE001
            say_once(f"MegaScope does nothing more: {type(error).__name__}: {error}")
            return False
        return True


def _border(step: int, chain: PluginChain, chunks: Sequence[Any]) -> None:
    from megatron.core.utils import get_model_config

    from megatronapp.trainer.newest_weights import newest_weights

    chain.phase_begin(Phase.PAUSE)
    try:
        with newest_weights(chunks, get_model_config(chunks[0])):
            chain.border(step)
    finally:
        chain.phase_end(Phase.PAUSE)


def unseen(chunks: Sequence[Any], models: Sequence[Any]) -> str:
    """Why nobody can look into these; empty: one can."""
    from megatron.core.models.gpt import GPTModel

    for model in models:
        if not isinstance(model, GPTModel):
            return f"it knows the layers of a GPT, not of {type(model).__name__}"
    wrapped = next((type(chunk).__name__ for chunk in chunks if "FullyShard" in type(chunk).__name__), "")
    if wrapped:
        return f"{wrapped} gathers weights that it would look into"
    config = models[0].config
    if getattr(config, "enable_cuda_graph", False) or getattr(config, "cuda_graph_impl", "none") not in (None, "none"):
        return "a CUDA graph replays what it would look into: leave the graphs out"
    return ""
