"""What a rank tells of itself, through its agent: states, answers to commands, what it can be asked for."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from megatronapp.core.trace.values import Phase
from megatronapp.trainer.plugins.base import PluginContext
from megatronapp.trainer.plugins.scope.commands import Document


class Teller:
    """For the training thread. What nobody listens to is lost."""

    def __init__(self, context: PluginContext, state_document: Callable[[], Document]) -> None:
        """`state_document`: a `ScopeState` but for its `state`."""
        self._context = context
        self._state_document = state_document
        self.state = "idle" if context.serving else "training"

    def say(self, value: Document) -> None:
        line = self._context.channel.line
        if line is not None:
            line.say("scope", value)

    def mark_step(self) -> None:
        """This step is watched or disturbed: nobody is to judge how long it takes."""
        line = self._context.channel.line
        if line is not None:
            line.mark_step(Phase.WATCHED)

    def acknowledge(self, command: Mapping[str, Any], code: str, hint: str, step: int) -> None:
        """`step`: from which on it holds."""
        identifier = str(command.get("id", ""))
        self.say({"ack": {"command": identifier, "code": code, "hint": hint, "effective_step": step}})

    def report_state(self, state: str) -> None:
        """By rank 0, for all: they are in it together."""
        if state != self.state:
            self.state = state
            if self._context.identity.rank == 0:
                self.say({"event": {"state": self.described_state()}})

    def described_state(self) -> Document:
        return {"state": self.state, **self._state_document()}

    def hello(self, sites: Document, chunk: Any, *, asked_for_text: bool) -> Document:
        """A `ScopeHello`. `sites`: what can be looked at (`Viewer.described`); `asked_for_text`: this rank is."""
        context, config = self._context, chunk.config
        roles = [*(() if context.serving else ("train",)), "perturb", *(("generate",) if asked_for_text else ())]
        model = {
            **sites["model"],
            "microbatches": context.schedule.microbatches,
            "position_embedding": str(getattr(chunk, "position_embedding_type", "")),
            "normalization": str(config.normalization),
            "norm_epsilon": float(config.layernorm_epsilon),
        }
        if context.tokenizer is not None:
            model["vocabulary"] = context.tokenizer.vocab_size
        if context.serving:
            model["sequence_length"] = context.max_positions
        return {
            "roles": roles,
            "state": self.described_state(),
            "confirms_demands": True,
            "sites": sites["sites"],
            "model": model,
        }
