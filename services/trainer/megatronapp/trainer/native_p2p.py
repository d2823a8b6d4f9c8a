"""Messages between pipeline stages over the native transport (`--p2p-transport native`, the wheel megatronapp-rdma).

megatron-core's schedules and its communicator run as they are; only the posting of messages is another: by tag, in any
order, without a group. A message's tag is its direction and its number within the step, which both ends count.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable
from importlib import import_module
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from megatron.core import parallel_state
from megatron.core.pipeline_parallel import get_forward_backward_func
from megatron.core.pipeline_parallel.p2p_communication import P2PCommunicator
from megatron.core.process_groups_config import ProcessGroupCollection
from megatron.core.transformer.transformer_config import TransformerConfig

from megatronapp.core.errors import TrainingError, UsageError
from megatronapp.core.logging import get_logger
from megatronapp.trainer.config import ParallelConfig
from megatronapp.trainer.environment import Environment

if TYPE_CHECKING:
    from megatronapp.rdma import Engine, Handle

log = get_logger(__name__)

WHEEL = "megatronapp.rdma"


class SendRequest:
    """The engine keeps what is sent until it is read: nothing has to wait, not even for the memory to be given up."""

    def wait(self) -> None:
        pass


class ReceiveRequest:
    """On a GPU the current stream waits, on a CPU the host."""

    def __init__(self, handle: Handle, forget: Callable[[int], object]) -> None:
        self._handle = handle
        self._forget = forget
        self.is_completed = handle.is_completed

    def wait(self) -> None:
        self._handle.wait_stream()
        if self._handle.done():
            self._forget(self._handle.id)


class PipelineMessages:
    """Posts one rank's messages to the stages before and after it. Has the signature of megatron-core's `_p2p_ops`."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._rdma = import_module(WHEEL)
        self._step = 0
        self._numbers: Counter[tuple[int, bool]] = Counter()
        self._receives: dict[int, Handle] = {}  # not known to have ended; what has ended must not be kept

    def begin_step(self) -> None:
        self._step += 1
        self._numbers.clear()

    def end_step(self) -> None:
        """Raises what went wrong with any message, also where only a stream waited: results must not be used then."""
        while self._receives:
            self._receives.popitem()[1].wait()
        self._take_ended()
        self._engine.check()

    def _take_ended(self) -> None:
        for completion in self._engine.poll():
            completion.handle.raise_for_status()
            self._receives.pop(completion.handle.id, None)

    def __call__(
        self,
        *,
        tensor_send_prev: torch.Tensor | None,
        tensor_recv_prev: torch.Tensor | None,
        tensor_send_next: torch.Tensor | None,
        tensor_recv_next: torch.Tensor | None,
        group: dist.ProcessGroup,
        prev_pipeline_rank: int,
        next_pipeline_rank: int,
    ) -> dict[str, SendRequest | ReceiveRequest]:
        self._take_ended()
        forward, backward = self._rdma.Kind.FORWARD, self._rdma.Kind.BACKWARD
        requests: dict[str, SendRequest | ReceiveRequest] = {}
        # Receives first: a sender that comes now need not wait.
        if tensor_recv_prev is not None:
            requests["recv_prev"] = self._receive(tensor_recv_prev, prev_pipeline_rank, forward)
        if tensor_recv_next is not None:
            requests["recv_next"] = self._receive(tensor_recv_next, next_pipeline_rank, backward)
        if tensor_send_next is not None:
            requests["send_next"] = self._send(tensor_send_next, next_pipeline_rank, forward)
        if tensor_send_prev is not None:
            requests["send_prev"] = self._send(tensor_send_prev, prev_pipeline_rank, backward)
        return requests

    def _send(self, tensor: torch.Tensor, peer: int, kind: int) -> SendRequest:
        self._engine.isend(tensor.contiguous(), peer, self._tag(kind, sends=True))
        return SendRequest()

    def _receive(self, tensor: torch.Tensor, peer: int, kind: int) -> ReceiveRequest:
        handle = self._engine.irecv(tensor, peer, self._tag(kind, sends=False))
        self._receives[handle.id] = handle
        return ReceiveRequest(handle, lambda number: self._receives.pop(number, None))

    def _tag(self, kind: int, *, sends: bool) -> Any:
        number = self._numbers[kind, sends]
        self._numbers[kind, sends] += 1
        return self._rdma.Tag(kind, microbatch=number, step=self._step)


class NativeP2PCommunicator(P2PCommunicator):
    """megatron-core's communicator with `post` in place of torch.distributed."""

    def __init__(self, config: TransformerConfig, post: PipelineMessages) -> None:
        super().__init__(parallel_state.get_pipeline_model_parallel_group(), config)
        self.post: Callable[..., Any] = post

    def _communicate(
        self,
        *,
        tensor_send_next: torch.Tensor | None,
        tensor_send_prev: torch.Tensor | None,
        recv_prev: bool,
        recv_next: bool,
        tensor_shape: Any,
        wait_on_reqs: bool = True,
    ) -> tuple[torch.Tensor | None, torch.Tensor | None, dict[str, Any] | None]:
        shapes = (tensor_shape, tensor_shape)
        if self.config.variable_seq_lengths or self.config.mtp_standalone:
            shapes = self._communicate_shapes(tensor_send_next, tensor_send_prev, recv_prev, recv_next)
        from_prev = self._buffer(shapes[0]) if recv_prev else None
        from_next = self._buffer(shapes[1]) if recv_next else None
        requests = self.post(
            tensor_send_prev=tensor_send_prev,
            tensor_recv_prev=from_prev,
            tensor_send_next=tensor_send_next,
            tensor_recv_next=from_next,
            group=self.pp_group,
            prev_pipeline_rank=self.prev_rank,
            next_pipeline_rank=self.next_rank,
        )
        if not wait_on_reqs:
            return from_prev, from_next, requests
        for request in requests.values():
            request.wait()
        return from_prev, from_next, None

    def _buffer(self, shape: Any) -> torch.Tensor:
        return torch.empty(
            shape, requires_grad=True, device=torch.cuda.current_device(), dtype=self.config.pipeline_dtype
        )


class NativeSchedule:
    """A schedule of megatron-core whose messages go over the engine."""

    def __init__(self, schedule: Callable[..., Any], config: TransformerConfig, engine: Engine) -> None:
        self._schedule = schedule
        self._messages = PipelineMessages(engine)
        self._errors = import_module(WHEEL).TransportError
        self.communicator = NativeP2PCommunicator(config, self._messages)
        self._groups = _groups()

    def __call__(self, **kwargs: Any) -> Any:
        """Raises TrainingError when a message failed, before its tensors can change a parameter."""
        self._messages.begin_step()
        try:
            outputs = self._schedule(p2p_communicator=self.communicator, pg_collection=self._groups, **kwargs)
            self._messages.end_step()
        except self._errors as error:
            raise TrainingError(f"a message between pipeline stages failed: {error}") from error
        return outputs


def schedule(config: TransformerConfig, engine: Engine | None) -> Callable[..., Any]:
    """megatron-core's schedule for this layout, as it is or over the engine."""
    stock: Callable[..., Any] = get_forward_backward_func()
    return stock if engine is None else NativeSchedule(stock, config, engine)


def _groups() -> ProcessGroupCollection:
    """The groups that the schedules take for themselves when they are given no communicator."""
    groups = ProcessGroupCollection()
    groups.tp = parallel_state.get_tensor_model_parallel_group()
    groups.cp = parallel_state.get_context_parallel_group()
    groups.embd = parallel_state.get_embedding_group(check_initialized=False)
    groups.pos_embd = parallel_state.get_position_embedding_group(check_initialized=False)
    groups.pp = parallel_state.get_pipeline_model_parallel_group()
    groups.dp_cp = parallel_state.get_data_parallel_group(with_context_parallel=True, partial_data_parallel=False)
    return groups


def open_engine(config: ParallelConfig, environment: Environment, store: Any) -> Engine | None:
    """This rank's engine, connected with its neighbours in the pipeline; None where there is nothing to send.

    Raises UsageError without the wheel, and TrainingError when a neighbour can't be reached.
    """
    if config.p2p_transport != "native" or config.pipeline_model_parallel_size == 1:
        return None
    try:
        rdma = import_module(WHEEL)
    except ImportError as error:
        raise UsageError("--p2p-transport native needs the wheel: pip install megatronapp-rdma") from error
    ranks = dist.get_process_group_ranks(parallel_state.get_pipeline_model_parallel_group())
    try:
        settings = rdma.flags.settings(
            rank=environment.rank,
            workload=config.workload,
            num_gpus=config.num_gpus,
            multi_node=config.multi_node,
            node_ips=config.node_ips,
            ranks_per_node=int(os.environ.get("LOCAL_WORLD_SIZE", environment.world_size)),
            world_size=environment.world_size,
        )
        engine: Engine = rdma.Engine(
            environment.rank,
            environment.world_size,
            store,
            job=environment.job,
            epoch=environment.attempt,
            config=rdma.Config(deadline_seconds=config.distributed_timeout_minutes * 60, **settings),
        )
        engine.connect(rdma.neighbours(ranks, environment.rank))
    except ValueError as error:
        raise UsageError(str(error)) from error
    except rdma.TransportError as error:
        raise TrainingError(f"the native transport can't reach the neighbours: {error}") from error
    log.info("native_transport", lanes={peer: str(route) for peer, route in engine.lanes().items()})
    return engine
