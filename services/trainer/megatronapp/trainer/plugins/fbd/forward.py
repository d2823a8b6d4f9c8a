"""The forward world: forward passes alone, without gradients, for the backward world to run again from.

A step: the weights that the optimizer has changed have come or come in, layer by layer as needed; each microbatch goes
through this stage's layers and on to the next stage; what comes out of the layer before a backward part goes to that
part's ranks. Each part may have a few outputs on their way, then the stage waits until the oldest is received. In
*linears* mode what each linear makes is sent, too, in *layers* mode what each layer makes.
"""

from __future__ import annotations

import time
from collections import defaultdict, deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from megatron.core import parallel_state
from megatron.core.pipeline_parallel import schedules
from megatron.core.transformer.transformer_config import TransformerConfig

from megatronapp.core.errors import TrainingError
from megatronapp.core.pipeline.partition import Mode, Partition
from megatronapp.core.pipeline.recompute import ON_THE_WAY
from megatronapp.core.trace.message_id import Direction, MessageId
from megatronapp.core.trace.values import Phase
from megatronapp.trainer import model
from megatronapp.trainer.batches import Batches
from megatronapp.trainer.keyed_dropout import DEFAULT, MODEL_PARALLEL, KeyedStates
from megatronapp.trainer.models.gpt import GPTTrainStep
from megatronapp.trainer.models.train_step import StepSettings
from megatronapp.trainer.pipeline.port import Handle, PipelineMessages
from megatronapp.trainer.plugins.base import PluginContext, Runner, StepHooks
from megatronapp.trainer.plugins.fbd.held import Held
from megatronapp.trainer.plugins.fbd.linears import SentLinears
from megatronapp.trainer.plugins.fbd.link import PATIENCE_SECONDS, Go, Link, twins_of
from megatronapp.trainer.plugins.fbd.pending import Kind, Pending
from megatronapp.trainer.plugins.fbd.plan import Plan
from megatronapp.trainer.plugins.fbd.roles import Place
from megatronapp.trainer.plugins.fbd.slices import Sequence as TokenSequence
from megatronapp.trainer.plugins.fbd.slices import slices
from megatronapp.trainer.plugins.fbd.weights import EMBEDDING, Receiving, shared_parameters

if TYPE_CHECKING:
    from megatronapp.trainer.borders import Borders

AHEAD = 2
"""Receives from the stage before that are posted."""
POLL_SECONDS = 0.5e-3
PAUSE_SECONDS = 1.0
"""What comes between two steps and takes longer is told as a pause."""
ACTIVATION, STATES = range(2)
"""Parts of the message to the next stage."""
STOP_KEY = "fbd/stop"


class Outputs:
    """What this stage sends to backward parts."""

    def __init__(
        self, link: Link, partition: Partition, forward: TokenSequence, backward: TokenSequence, held: Held
    ) -> None:
        self._link, self._held = link, held
        self._partition = partition
        self._receivers = partial(_receivers, link, forward, backward)
        self._on_the_way: defaultdict[int, deque[list[Pending]]] = defaultdict(deque)

    def send(self, layer: int, microbatch: int, output: torch.Tensor) -> None:
        """What a layer makes, to who runs on from it. output: [s, b, h], or this tensor rank's slice of s"""
        self._held.send(partial(self._send, layer, microbatch, output))

    def _send(self, layer: int, microbatch: int, output: torch.Tensor) -> None:
        sent = self._on_the_way[layer]
        while len(sent) >= ON_THE_WAY:
            self._wait(sent.popleft())
        is_border = self._partition.is_border(layer)
        stage, chunk = self._partition.backward.place(self._partition.part(layer if is_border else layer + 1))
        kind, number = (Kind.LAYER, layer) if is_border else (Kind.INPUT, chunk)
        sent.append(
            [
                self._link.send(
                    output.narrow(0, start, length).contiguous(), twin, kind, microbatch=microbatch, chunk=number
                )
                for twin, start, length in self._receivers(stage)
            ]
        )

    def finish(self) -> None:
        """Wait until all are received."""
        for sent in self._on_the_way.values():
            while sent:
                self._wait(sent.popleft())

    def _wait(self, handles: Sequence[Pending]) -> None:
        for handle in handles:
            self._link.wait_sent(handle)


def _receivers(link: Link, forward: TokenSequence, backward: TokenSequence, stage: int) -> list[tuple[Place, int, int]]:
    """(who, from which token of this rank's, how many) of a backward stage's tensor ranks."""
    return [
        (twin, piece.source, piece.length)
        for twin in twins_of(link, stage=stage)
        for piece in slices(forward, backward, twin.tensor)
        if piece.sender == link.place.tensor
    ]


class Layers:
    """Hooks on this stage's layers: each waits for its weights, a part's first one draws as that part does, and what
    goes to a part is sent from behind the layer before it."""

    def __init__(
        self, chunk: Any, partition: Partition, weights: Receiving, outputs: Outputs, states: KeyedStates | None
    ) -> None:
        self._partition, self._weights, self._outputs, self._states = partition, weights, outputs, states
        self._step = self._microbatch = 0
        self._embeds = chunk.pre_process
        self._in_layers = MODEL_PARALLEL if chunk.config.sequence_parallel else DEFAULT
        if chunk.pre_process:
            chunk.embedding.register_forward_pre_hook(lambda *_: self._weights.wait(EMBEDDING))
        for layer in chunk.decoder.layers:
            number = layer.layer_number - 1
            layer.register_forward_pre_hook(partial(self._before, number))
            feeds = partition.begins(number + 1) and number + 1 < partition.layers
            if feeds or partition.is_border(number):
                layer.register_forward_hook(partial(self._behind, number))

    def begin(self, step: int, microbatch: int) -> None:
        """Before a microbatch; the first part begins with the embedding."""
        self._step, self._microbatch = step, microbatch
        if self._embeds:
            self._draw(0, DEFAULT)

    def _before(self, layer: int, *_: Any) -> None:
        self._weights.wait(layer + 1)
        if layer and self._partition.begins(layer):
            self._draw(self._partition.part(layer), self._in_layers)

    def _behind(self, layer: int, _module: Any, _given: Any, output: tuple[torch.Tensor, Any]) -> None:
        self._outputs.send(layer, self._microbatch, output[0])

    def _draw(self, part: int, current: str) -> None:
        if self._states is not None:
            stage, chunk = self._partition.backward.place(part)
            self._states.set(self._step, stage, chunk, self._microbatch, current=current)


class ForwardLoop(Runner):
    """Steps for as long as the backward world says that there is another one."""

    def __init__(
        self,
        chunks: Sequence[torch.nn.Module],
        batches: Batches,
        hooks: StepHooks,
        context: PluginContext,
        config: TransformerConfig,
        link: Link,
        plan: Plan,
        states: KeyedStates | None,
    ) -> None:
        assert context.store is not None, "the trainer gives one"  # noqa: S101
        self._batches, self._hooks, self._config, self._link = batches, hooks, config, link
        self._pipeline: PipelineMessages | None = context.pipeline
        self._store = context.store
        self._states = states
        partition, sequences = plan.partition, plan.sequences
        first, after = partition.span(link.place.stage)
        self._goes_on = states is not None and first > 0 and not partition.begins(first)
        self._is_gone_on_with = states is not None and not partition.begins(after)
        self._chunk = model.lowered(list(chunks), config)[0]
        self._weights = Receiving(link, partition, shared_parameters(chunks, config, partition))
        self._held = Held()
        self._outputs = Outputs(link, partition, *sequences, self._held)
        self._linears = SentLinears(link, partition, chunks[0], self._held) if partition.mode is Mode.LINEARS else None
        self._layers = Layers(chunks[0], partition, self._weights, self._outputs, states)
        settings = StepSettings(config=plan.forward, device=context.device)
        self._forward_step = hooks.forward_step(GPTTrainStep(settings).forward_step)
        self._shape = (sequences[0].shard(0).length, batches.layout.micro_batch_size, config.hidden_size)
        self._data: Any = None
        self._training = plan.forward.training

    def train(self, borders: Borders) -> None:
        go = self._wait_for_go(self._ask())
        self._hooks.training_begin(max(go.step - 1, 0), go.consumed_samples, loaded=bool(go.weights))
        self._data = self._hooks.data(self._batches.train(go.consumed_samples)[0])
        asked, begun = False, None
        while go.step:
            self._run(go, begun)
            if borders.stopping() and not asked:
                self._store.set(STOP_KEY, "1")
                asked = True
            question = self._ask()
            begun = self._run_ahead(go.step + 1)
            go = self._wait_for_go(question, in_step=begun is not None)
        self._held.drop()
        self._weights.finish()
        self._hooks.training_end()
        self._hooks.phase_begin(Phase.PAUSE)

    def _ask(self) -> Question:
        self._link.begin_turn()
        said = torch.zeros(len(Go._fields), dtype=torch.int64)
        leader = self._link.twins[0]
        return Question(self._link.receive(said, leader, Kind.GO, patience_seconds=PATIENCE_SECONDS), said)

    def _wait_for_go(self, question: Question, *, in_step: bool = False) -> Go:
        """in_step: it has begun. An evaluation or a checkpoint that comes in between is no part of it."""
        if in_step and not self._link.comes_within(question.pending, PAUSE_SECONDS):
            self._hooks.phase_begin(Phase.PAUSE)
            self._link.wait_there(question.pending)
            self._hooks.phase_end(Phase.PAUSE)
        self._link.wait_received(question.pending)
        return Go(*question.said.tolist())

    def _run_ahead(self, step: int) -> Iterator[None] | None:
        """The first microbatch of a step that is to be expected, layer by layer behind the optimizer's pieces. What it
        makes is sent when the step is known to come. Returns the rest of its passes; None where nothing was run.

        Nothing that ranks may see at different times decides it: they meet in collectives.
        """
        if not self._expects(step):
            return None
        self._weights.wait_for_first()
        self._hooks.step_begin(step)
        self._held.hold()
        passes = self._passes(step)
        self._weights.on_host = True
        with torch.no_grad():
            next(passes)
        self._weights.on_host = False
        return passes

    def _expects(self, step: int) -> bool:
        """Stages that wait for each other do not begin what may not come."""
        training = self._training
        ends = step > training.train_iters or (training.exit_interval and (step - 1) % training.exit_interval == 0)
        return self._pipeline is None and not ends

    def _run(self, go: Go, passes: Iterator[None] | None) -> None:
        """passes: those that are left, where the step has begun."""
        if passes is None:
            self._hooks.step_begin(go.step)
            if go.weights:
                self._weights.post(self._link.turn - 1)
            passes = self._passes(go.step)
        self._held.release()
        with torch.no_grad():
            deque(passes, maxlen=0)
        self._outputs.finish()
        if self._linears is not None:
            self._linears.finish()
        self._link.check()
        self._weights.post(self._link.turn)
        self._hooks.step_end(go.step, None)

    def _passes(self, step: int) -> Iterator[None]:
        """One microbatch after the other."""
        microbatches = self._batches.layout.microbatches
        neighbours = Neighbours(self._pipeline, self._shape, self._config, step, microbatches)
        for microbatch in range(microbatches):
            activation = neighbours.receive(microbatch)
            self._layers.begin(step, microbatch)
            if self._linears is not None:
                self._linears.begin(microbatch)
            if self._goes_on and self._states is not None:
                self._states.restore(neighbours.receive_states(microbatch, self._states.read()))
            output, _ = schedules.forward_step(
                self._forward_step,
                self._data,
                self._chunk,
                microbatches,
                activation,
                [],
                self._config,
                cp_group_size=parallel_state.get_context_parallel_world_size(),
                is_first_microbatch=microbatch == 0,
                current_microbatch=microbatch,
                is_last_stage=False,
            )
            if self._is_gone_on_with and self._states is not None:
                neighbours.send_states(microbatch, self._states.read())
            neighbours.send(microbatch, output)
            yield
        neighbours.finish()


class Question(NamedTuple):
    """Whether there is another step: `said` is the Go that the message brings."""

    pending: Pending
    said: torch.Tensor


class Neighbours:
    """The stages before and after this one, in one step; nobody in a pipeline of one stage. Raises TrainingError."""

    def __init__(
        self,
        messages: PipelineMessages | None,
        shape: tuple[int, ...],
        config: TransformerConfig,
        step: int,
        microbatches: int,
    ) -> None:
        self._messages = messages
        self._shape, self._config, self._microbatches = shape, config, microbatches
        self._receives: deque[tuple[Handle, torch.Tensor]] = deque()
        self._sent: deque[Handle] = deque()
        self._before = self._after = None
        self._first = self._posted = 0
        if messages is not None:
            messages.begin_step(step)
            self._first = messages.begin_pass(microbatches)
            ranks = torch.distributed.get_process_group_ranks(messages.group)
            stage = messages.group.rank()
            self._before = ranks[stage - 1] if stage else None
            self._after = ranks[stage + 1] if stage + 1 < len(ranks) else None

    def receive(self, microbatch: int) -> torch.Tensor | None:
        if self._messages is None or self._before is None:
            return None
        with failures_told(self._messages):
            while self._posted < min(microbatch + AHEAD, self._microbatches):
                tensor = torch.empty(self._shape, device=torch.cuda.current_device(), dtype=self._config.pipeline_dtype)
                name = self._name(self._posted)
                self._receives.append((self._messages.receive(tensor, self._before, name), tensor))
                self._posted += 1
            handle, received = self._receives.popleft()
            handle.wait()
        return received

    def send(self, microbatch: int, output: torch.Tensor) -> None:
        if self._messages is None or self._after is None:
            return
        with failures_told(self._messages):
            while len(self._sent) >= ON_THE_WAY:  # the next stage is behind: nothing is urgent
                if self._sent[0].is_completed():
                    self._sent.popleft()
                else:
                    time.sleep(POLL_SECONDS)
            self._sent.append(self._messages.send(output, self._after, self._name(microbatch)))

    def send_states(self, microbatch: int, states: torch.Tensor) -> None:
        """Where the next stage goes on in the same part of the model: with the same draws."""
        assert self._messages is not None and self._after is not None, "the last stage ends a part"  # noqa: S101, PT018
        with failures_told(self._messages):
            self._messages.send(states, self._after, self._name(microbatch, STATES))

    def receive_states(self, microbatch: int, like: torch.Tensor) -> torch.Tensor:
        assert self._messages is not None and self._before is not None, "the first stage begins a part"  # noqa: S101, PT018
        with failures_told(self._messages):
            received = torch.empty_like(like)
            self._messages.receive(received, self._before, self._name(microbatch, STATES)).wait()
        return received

    def finish(self) -> None:
        if self._messages is not None:
            with failures_told(self._messages):
                self._messages.end_pass()

    def _name(self, microbatch: int, part: int = ACTIVATION) -> MessageId:
        return MessageId(Direction.FORWARD, self._first + microbatch, 0, part)


@contextmanager
def failures_told(messages: PipelineMessages) -> Iterator[None]:
    """Raises TrainingError for a message that failed."""
    try:
        yield
    except messages.transport.errors as error:
        raise TrainingError(f"a message between pipeline stages failed: {error}") from error
