"""One training step of one stage that chooses its next operation: messages, operations, and what holds them together
(dynamic.py has the idea)."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol, cast

import torch
import torch.distributed as dist
from megatron.core.pipeline_parallel import schedules
from megatron.core.utils import get_model_type

from megatronapp.core.errors import TrainingError
from megatronapp.core.pipeline.operations import Kind, Operation
from megatronapp.core.pipeline.placement import Layout
from megatronapp.core.pipeline.policy import StagePolicy
from megatronapp.core.trace.message_id import Direction, MessageId
from megatronapp.trainer.pipeline.agreement import Agreement
from megatronapp.trainer.pipeline.pace import GivenOrder, Pace
from megatronapp.trainer.pipeline.port import Handle, PipelineMessages, Post, Transport
from megatronapp.trainer.pipeline.shapes import ShapeMessages, received
from megatronapp.trainer.pipeline.wgrad import DeferredWgrad

WAIT_SECONDS = 0.2
PATIENCE, LEAST_PATIENCE_SECONDS = 4.0, 60.0
"""A stage that has waited for so many times its longest operation, and so long at least, gives up."""
DIRECTIONS = {Kind.FORWARD: Direction.FORWARD, Kind.BACKWARD: Direction.BACKWARD}


class AnyOrderTransport(Transport, Protocol):
    """One that carries messages in any order, as the native transport does."""

    def wait_any(self, timeout_seconds: float) -> None:
        """Return when one of the receives that were posted has ended, or after the time."""

    def in_flight(self) -> tuple[int, int]:
        """Bytes under way to the peer that has most of them just now, and how many may be to one; 0, 0: any number."""

    def lost(self) -> str:
        """Which ranks are lost, and why; nothing where none is."""


@dataclass(slots=True)
class Incoming:
    """What a lane receives, in its order."""

    posted: int = 0
    """Microbatches, from the first one on."""
    shapes: deque[tuple[Handle, Post, int, MessageId]] = field(default_factory=deque)
    """Posted for shapes that have not come, with the rank and the name of what is received then."""
    messages: deque[tuple[Handle, torch.Tensor]] = field(default_factory=deque)
    """Posted, and not taken by their operation."""
    arrived: bool = False
    """The policy has heard that the first of them has come."""


class Kept(NamedTuple):
    """Of a microbatch that has run forward on a chunk, until it runs backward."""

    activation: torch.Tensor | None
    output: torch.Tensor
    """Of which no more than its place in autograd's graph is left, once it was sent."""
    output_shape: torch.Size


@dataclass(kw_only=True)
class Step:
    """One training step of one stage."""

    layout: Layout
    stage: int
    policy: StagePolicy
    messages: PipelineMessages
    groups: Any
    agreement: Agreement | None
    wgrad: DeferredWgrad
    places: Callable[[int], Sequence[int]] | None
    """(stage) -> the place of each of its operations in its hint. None: messages go as they are posted."""
    first: int
    """Number of the first microbatch in messages' names."""
    config: Any
    chunks: list[Any]
    forward_step: Any
    data: list[Iterator[Any]]
    shape: tuple[int, ...]
    """Of what is received, unless lengths differ."""
    receives_ahead: int
    """Messages of a lane whose receives are posted before its head has run."""
    pace: Pace | GivenOrder | None
    """The latter where the policy runs an order that is given. None: the host waits for no device."""
    losses: list[Any] = field(default_factory=list)
    ran: list[Operation] = field(default_factory=list)
    dispatch_seconds: float = 0.0
    """What choosing took, and posting receives, of all operations together; waiting for messages is not in it."""

    def __post_init__(self) -> None:
        self._shapes = ShapeMessages(self.messages)
        self._ranks = dist.get_process_group_ranks(self.messages.group)
        self._incoming = {(kind, c): Incoming() for kind in DIRECTIONS for c in range(self.layout.chunks)}
        self._sources = {lane: self._source(*lane) for lane in self._incoming}
        self._kept: dict[tuple[int, int], Kept] = {}
        self._done = dict.fromkeys(((kind, c) for kind in self.layout.kinds for c in range(self.layout.chunks)), 0)
        self._unreduced = list(range(self.layout.chunks))
        self._last_kind = self.layout.kinds[-1]
        self._device = torch.cuda.current_device()
        self._tokens = torch.zeros([], dtype=torch.int, device=self._device)
        self._longest_seconds = 0.0
        self._with_no_sync = ExitStack()

    # ---- the step

    def run(self) -> None:
        """All operations; gradients are being reduced afterwards."""
        if self.config.timers is not None:
            self.config.timers("forward-backward", log_level=1).start(barrier=self.config.barrier_with_L1_time)
        with self.wgrad.active(), self._with_no_sync:
            for no_sync in _listed(self.config.no_sync_func):
                self._with_no_sync.enter_context(no_sync())
            for gather, chunk in zip(_listed(self.config.param_sync_func), self.chunks, strict=False):
                gather(chunk.parameters())
            self._post_receives(range(self.layout.chunks))
            while not self.policy.finished:
                self._run_next()

    def finish(self) -> None:
        """What megatron-core does at the end of its schedules."""
        if self.config.finalize_model_grads_func is not None:
            tokens = self._tokens if self.config.calculate_per_token_loss else None
            self.config.finalize_model_grads_func(self.chunks, tokens, pg_collection=self.groups)
        if self.config.timers is not None:
            self.config.timers("forward-backward").stop()

    def _run_next(self) -> None:
        operation = self._next()
        began = time.perf_counter()
        self.policy.start(operation)
        if self.pace is None:
            self._launch(operation)
        else:
            self.pace.launch(operation, lambda: self._launch(operation))
        self._done[operation.kind, operation.chunk] += 1
        self.policy.end(operation)
        self.ran.append(operation)
        self._post_receives((operation.chunk,))
        self._reduce_what_is_ready()
        self._longest_seconds = max(self._longest_seconds, time.perf_counter() - began)

    def _launch(self, operation: Operation) -> None:
        match operation.kind:
            case Kind.FORWARD:
                self._forward(operation)
            case Kind.BACKWARD:
                self._backward(operation)
            case Kind.WGRAD:
                self.wgrad.run(operation.chunk, operation.microbatch)

    def _next(self) -> Operation:
        """What to run next, once something can. Raises TrainingError when nothing can for too long.

        A host that has nothing to choose runs ahead of its device, which waits for messages then.
        """
        if isinstance(self.pace, GivenOrder):
            self.pace.wait_until_one_may_be_launched()
            self._receive_shaped()
            return self.policy.following()
        if self.pace is not None:
            self.pace.wait_until_one_is_left()
        if self.agreement is not None and not self.agreement.leads:
            return self._follow(self.agreement)
        if self.pace is not None:
            self.pace.wait_until_it_ends_soon()
        operation = self._choose()
        if self.agreement is not None:
            self.agreement.send_decision(self.layout.number(operation))
        return operation

    def _choose(self) -> Operation:
        began = time.perf_counter()
        while True:
            if (operation := self.decide()) is not None:
                return operation
            if not any(self._awaited()):
                raise TrainingError(f"stage {self.stage} has nothing to run, and nothing will come: {self._standing()}")
            self._be_patient(began)
            cast(AnyOrderTransport, self.messages.transport).wait_any(WAIT_SECONDS)

    def decide(self) -> Operation | None:
        """What to run next of what can run now."""
        began = time.perf_counter()
        self._take_arrived()
        operation = self.policy.choose()
        self.dispatch_seconds += time.perf_counter() - began
        return operation

    def _follow(self, agreement: Agreement) -> Operation:
        began = time.perf_counter()
        self._receive_shaped()
        while (number := agreement.receive_decision(WAIT_SECONDS)) is None:
            self._be_patient(began)
        return self.layout.operation(number)

    def _be_patient(self, began: float) -> None:
        waited = time.perf_counter() - began
        if waited > max(LEAST_PATIENCE_SECONDS, PATIENCE * self._longest_seconds):
            raise TrainingError(f"stage {self.stage} has had nothing to run for {waited:.0f} s: {self._standing()}")
        if waited > WAIT_SECONDS:
            self.messages.idle()

    def _standing(self) -> str:
        lanes = ", ".join(f"{n} {kind.letter} of chunk {chunk}" for (kind, chunk), n in self._done.items())
        return f"it has run {lanes}, and waits for {', '.join(map(str, self._awaited())) or 'no message'}"

    def _awaited(self) -> Iterator[Operation]:
        """Of each lane the first operation whose message was posted and is not known to have come."""
        for (kind, chunk), lane in self._incoming.items():
            if (lane.messages or lane.shapes) and not lane.arrived:
                yield Operation(kind, chunk, self._done[kind, chunk])

    # ---- messages

    def _neighbour(self, chunk: int, towards: int) -> tuple[int, int] | None:
        """(stage, chunk) of the part before (−1) or after (+1) a chunk's part of the model."""
        part = self.layout.part(self.stage, chunk) + towards
        return self.layout.place(part) if 0 <= part < self.layout.parts else None

    def _source(self, kind: Kind, chunk: int) -> tuple[int, int] | None:
        """(rank, upstream chunk) of what a lane receives; None where the model begins or ends."""
        forward = kind is Kind.FORWARD
        source = self._neighbour(chunk, -1 if forward else 1)
        return None if source is None else (self._ranks[source[0]], source[1] if forward else chunk)

    def _name(self, kind: Kind, microbatch: int, upstream_chunk: int) -> MessageId:
        return MessageId(DIRECTIONS[kind], self.first + microbatch, upstream_chunk)

    def _urgency(self, kind: Kind, place: tuple[int, int], microbatch: int) -> int:
        """Of a message for an operation there, (stage, chunk): the sooner it is to run, the greater."""
        stage, chunk = place
        return 0 if self.places is None else -self.places(stage)[self.layout.number(Operation(kind, chunk, microbatch))]

    def _receive_shaped(self) -> None:
        """Where nobody asks what has come."""
        for lane in self._incoming.values():
            self._receive_what_has_a_shape(lane)

    def _post_receives(self, chunks: Iterable[int]) -> None:
        """Once more may be received for these. A device computes meanwhile, and a sender that comes need not wait."""
        began = time.perf_counter()
        for chunk in chunks:
            for kind in DIRECTIONS:
                lane = self._incoming[kind, chunk]
                for microbatch in range(lane.posted, min(self.layout.microbatches, self._post_until(kind, chunk))):
                    lane.posted += 1
                    self._post_receive(Operation(kind, chunk, microbatch))
        self.dispatch_seconds += time.perf_counter() - began

    def _post_until(self, kind: Kind, chunk: int) -> int:
        """Some ahead of the lane's head; of backward only what its forward has been run of."""
        limit = self._done[kind, chunk] + self.receives_ahead
        return limit if kind is Kind.FORWARD else min(limit, self._done[Kind.FORWARD, chunk])

    def _post_receive(self, operation: Operation) -> None:
        source = self._sources[operation.kind, operation.chunk]
        if source is None:
            return
        rank, upstream_chunk = source
        name = self._name(operation.kind, operation.microbatch, upstream_chunk)
        lane = self._incoming[operation.kind, operation.chunk]
        if not self.config.variable_seq_lengths:
            self._receive(lane, self.shape, rank, name)
        elif operation.kind is Kind.FORWARD:
            post = self._shapes.incoming(rank, name)
            lane.shapes.append((self._shapes.post([post])[0], post, rank, name))
        else:
            self._receive(lane, self._kept[operation.chunk, operation.microbatch].output_shape, rank, name)

    def _receive(self, lane: Incoming, shape: Sequence[int], rank: int, name: MessageId) -> None:
        tensor = torch.empty(*shape, requires_grad=True, device=self._device, dtype=self.config.pipeline_dtype)
        lane.messages.append((self.messages.receive(tensor, rank, name), tensor))

    def _receive_what_has_a_shape(self, lane: Incoming) -> None:
        while lane.shapes and lane.shapes[0][0].is_completed():
            self._receive_next_shaped(lane)

    def _receive_next_shaped(self, lane: Incoming) -> None:
        handle, post, rank, name = lane.shapes.popleft()
        self._receive(lane, received(post, handle), rank, name)

    def _take_arrived(self) -> None:
        """Only the first message of a lane lets anything run."""
        for (kind, chunk), lane in self._incoming.items():
            if lane.shapes:
                self._receive_what_has_a_shape(lane)
            if lane.messages and not lane.arrived and lane.messages[0][0].is_completed():
                lane.arrived = True
                self.policy.arrived(Operation(kind, chunk, self._done[kind, chunk]))

    def _received(self, operation: Operation) -> torch.Tensor | None:
        lane = self._incoming[operation.kind, operation.chunk]
        if lane.shapes and not lane.messages:
            self._receive_next_shaped(lane)
        if not lane.messages:
            return None  # the model begins or ends here
        handle, tensor = lane.messages.popleft()
        lane.arrived = False
        handle.wait()
        return tensor

    # ---- operations

    def _forward(self, operation: Operation) -> None:
        _, chunk, microbatch = operation
        activation = self._received(operation)
        following = self._neighbour(chunk, 1)
        output, tokens = schedules.forward_step(
            self.forward_step,
            self.data[chunk],
            self.chunks[chunk],
            self.layout.microbatches,
            activation,
            self.losses,
            self.config,
            cp_group_size=self.groups.cp.size(),
            is_first_microbatch=microbatch == 0,
            current_microbatch=microbatch,
            vp_stage=chunk if self.layout.chunks > 1 else None,
            is_last_stage=following is None,
        )
        self._tokens += tokens
        self._kept[chunk, microbatch] = Kept(activation, output, output.shape)
        if following is not None:
            urgency = self._urgency(Kind.FORWARD, following, microbatch)
            self._send_output(output, following[0], self._name(Kind.FORWARD, microbatch, chunk), urgency)
            schedules.deallocate_output_tensor(output, self.config.deallocate_pipeline_outputs)

    def _send_output(self, output: torch.Tensor, stage: int, name: MessageId, urgency: int) -> None:
        rank = self._ranks[stage]
        if self.config.variable_seq_lengths:
            self._shapes.post([self._shapes.outgoing(output.shape, rank, name, urgency)])
        self.messages.send(output, rank, name, urgency)

    def _backward(self, operation: Operation) -> None:
        _, chunk, microbatch = operation
        gradient = self._received(operation)
        activation, output, _ = self._kept.pop((chunk, microbatch))
        model_type = get_model_type(self.chunks[chunk])
        with self.wgrad.backward_of(chunk, microbatch):
            of_input = schedules.backward_step(activation, output, gradient, model_type, self.config)
        source = self._neighbour(chunk, -1)
        if source is not None:
            stage, upstream_chunk = source
            name = self._name(Kind.BACKWARD, microbatch, upstream_chunk)
            self.messages.send(of_input, self._ranks[stage], name, self._urgency(Kind.BACKWARD, source, microbatch))

    def _reduce_what_is_ready(self) -> None:
        """Chunks from the last one on, whatever order they end in."""
        while self._unreduced and self._done[self._last_kind, self._unreduced[-1]] == self.layout.microbatches:
            chunk = self._unreduced.pop()
            reduce = _listed(self.config.grad_sync_func)
            if reduce:
                reduce[chunk](self.chunks[chunk].parameters())


def _listed(functions: Any) -> Sequence[Any]:
    """megatron-core's configuration has one function, a list of one for each chunk, or none."""
    if functions is None:
        return []
    return functions if isinstance(functions, list) else [functions]
