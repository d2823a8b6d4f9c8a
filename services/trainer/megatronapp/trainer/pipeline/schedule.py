"""megatron-core's schedules over the port."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from megatron.core import parallel_state
from megatron.core.pipeline_parallel import get_forward_backward_func
from megatron.core.pipeline_parallel.p2p_communication import P2PCommunicator
from megatron.core.process_groups_config import ProcessGroupCollection
from megatron.core.transformer.transformer_config import TransformerConfig

from megatronapp.core.errors import TrainingError
from megatronapp.core.logging import get_logger
from megatronapp.core.trace.message_id import MICROBATCH_BITS, Direction, MessageId
from megatronapp.trainer.config import ParallelConfig
from megatronapp.trainer.environment import Environment
from megatronapp.trainer.pipeline import native
from megatronapp.trainer.pipeline.identity import Pass
from megatronapp.trainer.pipeline.port import Handle, PipelineMessages, Post, Transport
from megatronapp.trainer.pipeline.shapes import ShapeMessages, received
from megatronapp.trainer.pipeline.torch_transport import TorchTransport, key_of
from megatronapp.trainer.worlds import World

log = get_logger(__name__)

Shape = tuple[int, ...]
NONE: Shape = (0,)


def open_pipeline(
    config: ParallelConfig,
    environment: Environment,
    world: World,
    store: Any,
    lane: str = "",
    in_flight_bytes: int | None = None,
) -> PipelineMessages | None:
    """This rank's port to its neighbours; None where the pipeline has one stage. Raises as `native.open_engine`."""
    group = parallel_state.get_pipeline_model_parallel_group()
    if group.size() == 1:
        return None
    transport: Transport = TorchTransport(group)
    if config.p2p_transport == "native":
        engine = native.open_engine(config, environment, world, group, store, lane, in_flight_bytes)
        transport = native.NativeTransport(engine)
    return PipelineMessages(transport, group, world)


def build(config: TransformerConfig, messages: PipelineMessages | None) -> Callable[..., Any]:
    """megatron-core's schedule for this layout, over the port where there is one."""
    stock: Callable[..., Any] = get_forward_backward_func()
    return stock if messages is None else PipelineSchedule(stock, config, messages)


class Names:
    """Of one pass on one stage: each stream's messages, taken one by one."""

    def __init__(self, plan: Pass, stage: int) -> None:
        self._streams = {
            (sends, direction): iter(plan.sends(stage, direction) if sends else plan.receives(stage, direction))
            for sends in (True, False)
            for direction in Direction
        }

    def take(self, *, sends: bool, direction: Direction) -> MessageId:
        """The next one. Raises TrainingError when the stream has ended."""
        name = next(self._streams[sends, direction], None)
        if name is None:
            raise TrainingError(f"the schedule has posted one {direction.name.lower()} message more than was derived")
        return name

    def finish(self) -> None:
        """Raises TrainingError for a message that was derived and not posted."""
        for left in self._streams.values():
            if (name := next(left, None)) is not None:
                raise TrainingError(f"the schedule has not posted {name}, which was derived from it")


class GuestNames(Names):
    """Of a schedule that nobody has proven them for: what was not derived goes on under names that nothing else has."""

    _unnamed = 0

    def take(self, *, sends: bool, direction: Direction) -> MessageId:
        try:
            return super().take(sends=sends, direction=direction)
        except TrainingError as error:
            if not self._unnamed:
                log.warning("messages_unnamed", reason=str(error))
            self._unnamed += 1
            return MessageId(direction, (1 << MICROBATCH_BITS) - self._unnamed, 0)

    def finish(self) -> None:
        pass


class PortCommunicator(P2PCommunicator):
    """megatron-core's communicator, which hands each message to the port under the name that the schedule's order gives
    it."""

    def __init__(self, config: TransformerConfig, messages: PipelineMessages, *, guest: bool = False) -> None:
        """`guest`: as for the schedule; then shapes are exchanged as megatron-core does."""
        super().__init__(messages.group, config)
        self._messages = messages
        self._guest = guest
        self._shapes = ShapeMessages(messages)
        self.names: Names | None = None
        self._sent: dict[MessageId, Shape] = {}
        """Of outputs whose gradients have not been asked for, by the gradient's name."""
        self._shapes_sent: list[Handle] = []

    def begin_pass(self, names: Names) -> None:
        self.names = names
        self._sent.clear()

    def end_pass(self) -> None:
        """Nobody has waited for these: the peer may ask for a shape only when it has sent one."""
        self._messages.wait(self._shapes_sent)
        self._shapes_sent.clear()

    def _communicate(
        self,
        *,
        tensor_send_next: torch.Tensor | None,
        tensor_send_prev: torch.Tensor | None,
        recv_prev: bool,
        recv_next: bool,
        tensor_shape: Any,
        wait_on_reqs: bool = True,
    ) -> tuple[torch.Tensor | None, torch.Tensor | None, dict[str, Handle] | None]:
        forward, backward = Direction.FORWARD, Direction.BACKWARD
        to_prev = self._take(backward, sends=True) if tensor_send_prev is not None else None
        to_next = self._take(forward, sends=True) if tensor_send_next is not None else None
        name_prev = self._take(forward, sends=False) if recv_prev else None
        name_next = self._take(backward, sends=False) if recv_next else None
        shapes = (tensor_shape, tensor_shape)
        if self.config.variable_seq_lengths and not self._guest:
            shapes = self._exchange_shapes(tensor_send_next, to_next, name_prev, name_next)
        elif self.config.variable_seq_lengths or getattr(self.config, "mtp_standalone", False):
            shapes = self._communicate_shapes(tensor_send_next, tensor_send_prev, recv_prev, recv_next)
        from_prev = self._buffer(shapes[0]) if recv_prev else None
        from_next = self._buffer(shapes[1]) if recv_next else None
        posts = [
            *self._posts(tensor_send_prev, self.prev_rank, to_prev, sends=True),
            *self._posts(from_prev, self.prev_rank, name_prev, sends=False),
            *self._posts(tensor_send_next, self.next_rank, to_next, sends=True),
            *self._posts(from_next, self.next_rank, name_next, sends=False),
        ]
        handles = self._messages.exchange(posts, batch=self.config.batch_p2p_comm) if posts else []
        if not wait_on_reqs:
            requests = {key_of(post.message): handle for post, handle in zip(posts, handles, strict=True)}
            return from_prev, from_next, requests
        self._messages.wait(handles)
        if self._messages.transport.ordered and self.config.batch_p2p_comm and self.config.batch_p2p_sync:
            torch.cuda.synchronize()  # as megatron-core does after a batch
        return from_prev, from_next, None

    def _take(self, direction: Direction, *, sends: bool) -> MessageId:
        assert self.names is not None, "messages are posted inside a pass"  # noqa: S101
        return self.names.take(sends=sends, direction=direction)

    def _exchange_shapes(
        self,
        output: torch.Tensor | None,
        output_name: MessageId | None,
        activation_name: MessageId | None,
        gradient_name: MessageId | None,
    ) -> tuple[Shape, Shape]:
        """Of what comes from the stage before and from the one after; (0,) where nothing does."""
        posts = []
        if activation_name is not None:
            posts.append(self._shapes.incoming(self.prev_rank, activation_name))
        if output is not None and output_name is not None:
            posts.append(self._shapes.outgoing(output.shape, self.next_rank, output_name))
            self._sent[output_name._replace(direction=Direction.BACKWARD)] = tuple(output.shape)
        handles = self._shapes.post(posts, batch=self.config.batch_p2p_comm) if posts else []
        self._shapes_sent += handles[-1:] if output_name is not None else []
        activation = received(posts[0], handles[0]) if activation_name is not None else NONE
        gradient = self._sent.pop(gradient_name) if gradient_name is not None else NONE
        return activation, gradient

    def _posts(self, tensor: torch.Tensor | None, peer: int, name: MessageId | None, *, sends: bool) -> list[Post]:
        if tensor is None or name is None:
            return []
        make = self._messages.outgoing if sends else self._messages.incoming
        return [make(tensor, peer, name)]

    def _buffer(self, shape: Any) -> torch.Tensor:
        return torch.empty(
            shape, requires_grad=True, device=torch.cuda.current_device(), dtype=self.config.pipeline_dtype
        )


class PipelineSchedule:
    """A schedule of megatron-core whose messages go through the port.

    Where torch carries them and nobody watches, megatron-core runs as it is.
    """

    def __init__(
        self, stock: Callable[..., Any], config: TransformerConfig, messages: PipelineMessages, *, guest: bool = False
    ) -> None:
        """`guest`: in a script that is not ours, which goes on where its schedule posts other messages than derived."""
        self._stock = stock
        self._names = GuestNames if guest else Names
        self._config = config
        self._messages = messages
        self._communicator = PortCommunicator(config, messages, guest=guest)
        # megatron-core's own exchange swaps the shapes of two messages between the same two ranks.
        self._shapes_by_name = config.variable_seq_lengths and not guest
        self._groups = process_groups()

    def __call__(self, **kwargs: Any) -> Any:
        """Raises TrainingError when a message failed, before its tensors can change a parameter."""
        messages, microbatches = self._messages, kwargs["num_microbatches"]
        first = messages.begin_pass(microbatches)
        if messages.transport.ordered and not messages.observers and not self._shapes_by_name:
            return self._stock(**kwargs)
        names = self._names(self._plan(microbatches, first, kwargs["forward_only"]), self._stage)
        self._communicator.begin_pass(names)
        try:
            outputs = self._stock(p2p_communicator=self._communicator, pg_collection=self._groups, **kwargs)
            self._communicator.end_pass()
            messages.end_pass()
        except messages.transport.errors as error:
            raise TrainingError(f"a message between pipeline stages failed: {error}") from error
        names.finish()
        return outputs

    @property
    def _stage(self) -> int:
        return int(self._messages.group.rank())

    def _plan(self, microbatches: int, first: int, forward_only: bool) -> Pass:
        chunks = self._config.virtual_pipeline_model_parallel_size or 1
        return Pass(
            stages=self._messages.group.size(),
            chunks=chunks,
            microbatches=microbatches,
            group=self._config.microbatch_group_size_per_vp_stage if chunks > 1 else microbatches,
            forward_only=forward_only,
            first=first,
        )


def process_groups() -> ProcessGroupCollection:
    """The groups that the schedules take for themselves when they are given no communicator."""
    groups = ProcessGroupCollection()
    groups.tp = parallel_state.get_tensor_model_parallel_group()
    groups.cp = parallel_state.get_context_parallel_group()
    groups.embd = parallel_state.get_embedding_group(check_initialized=False)
    groups.pos_embd = parallel_state.get_position_embedding_group(check_initialized=False)
    groups.pp = parallel_state.get_pipeline_model_parallel_group()
    groups.dp_cp = parallel_state.get_data_parallel_group(with_context_parallel=True, partial_data_parallel=False)
    return groups
