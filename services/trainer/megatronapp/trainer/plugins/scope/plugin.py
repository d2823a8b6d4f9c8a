"""The plug-in: what comes from the agent, and when it is done.

    agent → channel → Agreement.publish … a border of all ranks … take_up → taps, disturbances, pause → acknowledged

Between borders nothing changes. While nobody asks for anything the model carries no hook and a step costs one look at
the agent's socket. Text is generated at a border; of a checkpoint that is served borders lie between two passes.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import torch
from megatron.core.transformer.transformer_config import TransformerConfig

from megatronapp.core.errors import DataError
from megatronapp.core.generation import GenerationRequest, Limits
from megatronapp.core.logging import get_logger
from megatronapp.core.trace.values import Phase, Progress
from megatronapp.trainer.plugins.base import Plugin, PluginContext, Preparation
from megatronapp.trainer.plugins.generating import TextGenerator
from megatronapp.trainer.plugins.scope import flags
from megatronapp.trainer.plugins.scope.commands import Agreement, Document
from megatronapp.trainer.plugins.scope.disturb import Disturber
from megatronapp.trainer.plugins.scope.generation import ScopePort, Text
from megatronapp.trainer.plugins.scope.lens import Lens, lens_documents
from megatronapp.trainer.plugins.scope.listener import Listener
from megatronapp.trainer.plugins.scope.optimizer_states import OptimizerStates
from megatronapp.trainer.plugins.scope.parameters import held_ends, held_states, held_weights, sites_of
from megatronapp.trainer.plugins.scope.perturb.kept import Kept
from megatronapp.trainer.plugins.scope.perturb.storage import HeldWeights
from megatronapp.trainer.plugins.scope.position import Position
from megatronapp.trainer.plugins.scope.saes import Sae, found_saes
from megatronapp.trainer.plugins.scope.shards import Shard
from megatronapp.trainer.plugins.scope.spelling import Speller
from megatronapp.trainer.plugins.scope.step_clock import StepClock
from megatronapp.trainer.plugins.scope.taps import Demand, Taps
from megatronapp.trainer.plugins.scope.telling import Teller
from megatronapp.trainer.plugins.scope.training import TrainControl, hold, may_be_last
from megatronapp.trainer.plugins.scope.viewer import Viewer, described
from megatronapp.trainer.plugins.scope.weights import weights

if TYPE_CHECKING:
    from typing import Self

log = get_logger(__name__)


class ScopePlugin(Plugin):
    """MegaScope in a training, or around a checkpoint that is served."""

    name: ClassVar[str] = "scope"
    serves: ClassVar[bool] = True

    @classmethod
    def add_arguments(cls, parser: argparse.ArgumentParser) -> None:
        flags.add_flags(parser)

    @classmethod
    def prepare(cls, args: argparse.Namespace, preparation: Preparation) -> Preparation:
        if not flags.wanted(args):
            return preparation
        return replace(preparation, frame_bytes=max(preparation.frame_bytes, flags.FRAME_BYTES))

    @classmethod
    def create(cls, args: argparse.Namespace, context: PluginContext) -> Self | None:
        flags.check(args)
        if not flags.wanted(args):
            return None
        if context.identity.rank == 0:
            flags.report_where(args)
        saes = found_saes(Path(args.scope_sae_dir)) if args.scope_sae_dir else ()
        return cls(context, weights_stay=not getattr(args, "overlap_param_gather", False), saes=saes)

    def __init__(self, context: PluginContext, *, weights_stay: bool, saes: Sequence[Sae] = ()) -> None:
        """`weights_stay`: at a step's begin the weights are where the step will find them."""
        assert context.store is not None  # noqa: S101  (the trainer gives one)
        self._context = context
        self._rank = context.identity.rank
        self._agreement = Agreement(context.store, self._rank, context.request_border)
        self._control = TrainControl()
        self._confirms: list[Any] = []
        """Revisions of demands that are in force and were not told of: the lens of one may wait for another border."""
        self._clock = StepClock()
        self._shared_step_seconds = 0.0
        """As the rank has seen it that heard the newest demand first."""
        self._weights_stay = weights_stay
        self._saes = saes
        self._built = False
        self._serving = context.serving
        self._teller = Teller(context, self._state_document)
        self._text = Text(context, self._teller.say, lambda: self._listener.listen())
        self._listener = Listener(context, self._agreement, self._clock, self._text, self._acknowledge)

    # -- what the trainer calls --

    def configure(self, config: TransformerConfig) -> None:
        self._config = config

    def models(self, chunks: Sequence[torch.nn.Module]) -> None:
        self._chunks = chunks
        first: Any = chunks[0]
        schedule = self._context.schedule
        for sae in self._saes:
            sae.check(first.config.num_layers, first.config.hidden_size)
        shard = Shard.of(
            chunks,
            first.config,
            vocabulary=int(first.vocab_size),
            micro_batch_size=schedule.micro_batch_size,
            sequence_length=schedule.sequence_length,
            ids=self._context.tokenizer.vocab_size if self._context.tokenizer else 0,
            saes=self._saes,
        )
        self._position = Position()
        self._taps = Taps(chunks, shard, self._position, self._saes)
        self._weights = list(weights(chunks))
        held = HeldWeights(self._weights, shard.data)
        self._kept = Kept(shard)
        self._disturber = Disturber(held, shard, first.config.params_dtype, self._kept, storage=self._weights_stay)
        self._viewer = Viewer(
            self._taps.spots,
            shard,
            self._context.channel,
            self._teller.say,
            self._rank,
            speller=Speller(tokenizer) if (tokenizer := self._context.tokenizer) else None,
            held=[*held_ends(chunks, shard), *held_weights(self._weights)],
            weights_stay=self._weights_stay,
        )
        self._lens = Lens(chunks, shard, self._viewer.queue)
        self._listener.tells_lens = self._lens.at_end
        self._context.channel.introduce = self._hello
        self._built = True
        self._teller.say(self._hello()[1])  # to an agent that is connected already

    def optimizer_built(self, optimizer: Any) -> None:
        states = OptimizerStates(optimizer)
        held = held_states(self._weights, lambda weight: states.of(weight.parameter))
        self._viewer.hold(held)
        self._teller.say({"sites": {"sites": [described(site) for site in sites_of(held).values()]}})

    def step_begin(self, step: int) -> None:
        self._listener.listen()
        self._clock.begin(step)
        pauses = self._control.pause_after == step
        shown = self._viewer.step_begin(step, before_pause=pauses)
        shown |= self._lens.step_begin(step, before_pause=pauses)
        disturbed = self._disturber.disturbs(step)
        self._position.step, self._position.active = step, shown or disturbed
        if disturbed:
            self._disturber.hold(step)
        if shown or disturbed:
            self._teller.mark_step()

    def optimizer(self, step: Callable[[], Any]) -> Callable[[], Any]:
        def with_true_weights() -> Any:
            self._disturber.release()
            return step()

        return with_true_weights

    def step_end(self, step: int, progress: Progress | None) -> None:
        self._position.active = False
        if self._viewer.step_end(wait=may_be_last(progress)):
            self._attach()
        self._clock.end()
        self._listener.listen()

    def phase_begin(self, phase: Phase) -> None:
        if phase is Phase.CHECKPOINT:
            self._disturber.hold(self._clock.step, in_checkpoint=True)

    def phase_end(self, phase: Phase) -> None:
        if phase is Phase.CHECKPOINT:
            self._disturber.release()

    def border_due(self, step: int) -> bool:
        if self._serving:
            return self.due()
        return self._control.pause_after == step or self._lens.due

    def border(self, step: int) -> bool:
        self._lens.exchange()
        self.hold()
        self._control.after(step)
        if self._control.paused:
            self._viewer.flush()
            self._teller.report_state("paused")
            hold(
                self._control,
                self._agreement,
                self._rank,
                listen=self._listener.listen,
                stopping=self._context.stopping,
                take_up=self._take_up,
                settle=self._settle,
            )
            self._teller.report_state("training")
        return False

    def close(self) -> None:
        if not self._built:
            return
        self._disturber.release()
        self._taps.clear()
        self._viewer.flush()
        self._teller.report_state("ending")

    # -- text --

    def generator(self, generator: TextGenerator) -> None:
        self._text.use(generator, self)

    def port(self, limits: Limits) -> ScopePort:
        return self._text.port

    def due(self) -> bool:
        """Between two passes, on every rank: whether they are to come together."""
        self._listener.listen()
        self._viewer.queue.flush()
        return self._rank == 0 and self._agreement.pending()

    def hold(self) -> None:
        """Between two passes or steps, on all ranks: what was asked for comes into force."""
        for document in self._agreement.take():
            self._take_up(document)
        self._settle()

    def request_begin(self, request: GenerationRequest, rows: int, positions: int) -> None:
        """What a request has done to its passes, and what it keeps of them (plugins.generating.PassObserver)."""
        if request.looks_inside:
            self._disturber.begin(request, rows)
            self._kept.begin(request, rows, positions, in_use=self._disturber.sources)
            self._attach()

    def request_end(self, request: str) -> None:
        if self._disturber.end(request):
            self._attach()

    def pass_begin(self, request: str, start: int, end: int, rows: int) -> None:
        """A generation's pass (plugins.generating.PassObserver)."""
        self._position.generate(request, start, end)
        step = self._position.step
        shown = self._viewer.pass_begin(request, step)
        shown |= self._lens.pass_begin(request, start, end, rows)
        shown |= self._kept.pass_begin(request)
        disturbed = self._disturber.disturbs(step, request)
        self._position.active = shown or disturbed
        if disturbed:
            self._disturber.hold(step, request)

    def pass_end(self) -> None:
        self._disturber.release()
        self._position.train()
        self._lens.exchange()
        if self._viewer.step_end():
            self._attach()

    # -- what is asked for --

    def _take_up(self, document: Document) -> None:
        """At a border, on all ranks alike."""
        if "stop" in document:
            self._control.release()
        elif "text" in document:
            self._text.asked = True
        elif "command" in document:
            command = document["command"]
            self._acknowledge(command, *self._done(command))
        else:
            self._shared_step_seconds = float(document["step_seconds"])
            if document["lens"] is not None:
                self._lens.set(document["lens"], self._shared_step_seconds)

    def _settle(self) -> None:
        """After what all have taken up: what this rank was asked for. The others were asked for their own, and a demand
        that came late is here when its own border is."""
        if (demand := self._listener.take_demand()) is not None:
            self._viewer.show(demand, self._shared_step_seconds)
            self._lens.show(lens_documents(demand))
            self._confirms.append(demand.get("revision", 0))
        self._attach()
        if self._confirms and self._agreement.settled:
            self._teller.say({"in_force": {"revision": self._confirms[-1]}})
            self._confirms.clear()
        if self._text.asked and self._teller.state != "generating":
            self._text.asked = False
            state = self._teller.state
            self._teller.report_state("generating")
            self._text.generate(self._chunks, self._config, self)
            self._viewer.flush()
            self._teller.report_state(state)

    def _done(self, command: Mapping[str, Any]) -> tuple[str, str]:
        """(code, hint) of its acknowledgement; an empty code: it is in force."""
        try:
            if isinstance(train := command.get("train"), dict) and not self._serving:
                self._control.apply(train, self._clock.step)
            elif isinstance(plan := command.get("perturb"), dict):
                self._disturber.put(plan)
                self._text.forget()
            elif isinstance(clear := command.get("perturb_clear"), dict):
                self._disturber.remove(str(clear.get("plan", "")))
                self._text.forget()
            else:
                what = "asked for text" if self._serving else "paused, stepped, resumed, asked for text"
                return "unsupported", f"it can be {what} and disturbed"
        except DataError as error:
            return "invalid", str(error)
        if self._rank == 0:
            log.info("scope_command", by=command.get("by", ""), reason=command.get("reason", ""), id=command.get("id"))
        return "", ""

    def _attach(self) -> None:
        """Hooks where somebody watches or disturbs, and nowhere else."""
        demands = []
        for spot in self._taps.spots:
            values, gradients = self._viewer.wanted(spot)
            if spot.sae is not None and not values:
                spot.sae.release()
            values += self._lens.wanted(spot) + self._kept.wanted(spot)
            demands.append((spot, Demand(self._disturber.changes(spot), values, gradients)))
        self._taps.set(demands)

    # -- what is told --

    def _acknowledge(self, command: Mapping[str, Any], code: str, hint: str) -> None:
        self._teller.acknowledge(command, code, hint, self._clock.step + 1)

    def _hello(self) -> tuple[str, Document]:
        """What the hello of a connection says of this plug-in."""
        sites = self._viewer.described(trains=not self._serving, generates=self._text.possible)
        return "scope", {"hello": self._teller.hello(sites, self._chunks[0], asked_for_text=self._text.here)}

    def _state_document(self) -> Document:
        return {
            "step": self._clock.step,
            "total_steps": self._context.schedule.total_steps,
            "overhead_ratio": self._viewer.overhead_ratio,
            "dropped_frames": self._viewer.queue.dropped,
            "lease_seconds": self._control.left_seconds,
            "plan": self._disturber.names,
        }
