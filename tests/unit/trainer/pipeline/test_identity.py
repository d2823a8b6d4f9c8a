"""Both ends of every link derive the same names, which are those that megatron-core's own schedules mean; and these
compute in the order of core/pipeline."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any
from unittest.mock import patch

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.distributed import HashStore

from megatronapp.core.errors import TrainingError
from megatronapp.core.pipeline.operations import Kind, Operation
from megatronapp.core.pipeline.orders import interleaved
from megatronapp.core.pipeline.placement import Layout
from megatronapp.core.trace.message_id import Direction, MessageId
from megatronapp.trainer import launch  # noqa: F401  (imported once, before the ranks are forked)
from megatronapp.trainer.pipeline.identity import Pass
from megatronapp.trainer.pipeline.schedule import Names
from tests.support.forked import run_forked

F, B = Direction.FORWARD, Direction.BACKWARD


@st.composite
def passes(draw: st.DrawFn) -> Pass:
    stages = draw(st.integers(2, 8))
    chunks = draw(st.integers(1, 4))
    groups = draw(st.integers(1, 4))
    if chunks == 1:
        microbatches = group = draw(st.integers(1, 16))
    else:  # what megatron-core takes: the last group as large as the pipeline, or no rest
        group = draw(st.integers(stages, stages + 3))
        microbatches = groups * group + draw(st.sampled_from([0, *range(stages, group)]))
    return Pass(
        stages=stages,
        chunks=chunks,
        microbatches=microbatches,
        group=group,
        forward_only=draw(st.booleans()),
        first=draw(st.sampled_from([0, microbatches])),
    )


@given(passes())
def test_both_ends_of_a_link_derive_the_same_messages_in_the_same_order(plan: Pass) -> None:
    for stage in range(plan.stages):
        downstream = (stage + 1) % plan.stages
        assert plan.sends(stage, F) == plan.receives(downstream, F)
        assert plan.sends(downstream, B) == plan.receives(stage, B)


@given(passes())
def test_every_tensor_that_crosses_stages_is_one_message(plan: Pass) -> None:
    microbatches = range(plan.first, plan.first + plan.microbatches)
    crossing = [(s, c) for s in range(plan.stages) for c in range(plan.chunks)][: plan.stages * plan.chunks]
    crossing.remove((plan.stages - 1, plan.chunks - 1))

    forward = [(stage, name) for stage in range(plan.stages) for name in plan.sends(stage, F)]
    backward = [(stage, name) for stage in range(plan.stages) for name in plan.receives(stage, B)]

    assert sorted(forward) == sorted((s, MessageId(F, m, c)) for s, c in crossing for m in microbatches)
    expected = [] if plan.forward_only else [(s, MessageId(B, m, c)) for s, c in crossing for m in microbatches]
    assert sorted(backward) == sorted(expected)


def test_two_stages_of_two_chunks_by_hand() -> None:
    plan = Pass(stages=2, chunks=2, microbatches=2, group=2)

    assert plan.sends(0, F) == [MessageId(F, 0, 0), MessageId(F, 1, 0), MessageId(F, 0, 1), MessageId(F, 1, 1)]
    assert plan.sends(1, F) == plan.receives(0, F) == [MessageId(F, 0, 0), MessageId(F, 1, 0)]
    assert plan.sends(1, B) == [MessageId(B, 0, 1), MessageId(B, 1, 1), MessageId(B, 0, 0), MessageId(B, 1, 0)]
    assert plan.sends(0, B) == plan.receives(1, B) == [MessageId(B, 0, 0), MessageId(B, 1, 0)]


def test_a_single_stage_sends_nothing() -> None:
    assert Pass(stages=1, chunks=1, microbatches=4, group=4).sends(0, F) == []


def test_a_message_more_or_less_than_derived_is_an_error() -> None:
    plan = Pass(stages=2, chunks=1, microbatches=1, group=1)
    with pytest.raises(TrainingError, match="has not posted"):
        Names(plan, 0).finish()

    names = Names(plan, 0)
    names.take(sends=True, direction=F)
    with pytest.raises(TrainingError, match="one forward message more"):
        names.take(sends=True, direction=F)


# ---- megatron-core's own schedules, one stage at a time: tensors hold the name of what they are


@dataclass
class Group:
    """A process group as the schedules see it."""

    place: int
    stages: int

    def rank(self) -> int:
        return self.place

    def size(self) -> int:
        return self.stages


class Arrived:
    def wait(self) -> None:
        pass

    def is_completed(self) -> bool:
        return True


class NamingTransport:
    """What is received is what the name says; what is sent must be."""

    ordered = True
    errors: tuple[type[Exception], ...] = ()

    def begin(self) -> None:
        pass

    def end(self) -> None:
        pass

    def close(self) -> None:
        pass

    def post(self, posts: Any, *, batch: bool) -> list[Any]:
        for post in posts:
            name = float(post.message.id.pack())
            if post.message.sends:
                assert post.tensor.flatten()[0] == name, f"{post.message} carries {named(post.tensor)}"
            else:
                post.tensor.data.fill_(name)
        return [Arrived() for _ in posts]


@dataclass
class Counting:
    posted_messages: list[Any]

    def posting(self, messages: Any) -> None:
        self.posted_messages += messages

    def posted(self, messages: Any, handle: Any) -> None: ...

    def waiting(self, messages: Any) -> None: ...

    def ended(self, messages: Any) -> None: ...

    def idling(self) -> None: ...


def named(tensor: torch.Tensor) -> MessageId:
    return MessageId.unpack(int(tensor.flatten()[0]))


def tensor_of(name: MessageId) -> torch.Tensor:
    return torch.full((1, 1, 1), float(name.pack()), dtype=torch.float64)


def unwrapped(tensor: Any) -> Any:
    """Some schedules hand over lists of one tensor."""
    return tensor[0] if isinstance(tensor, list) else tensor


def wrapped_as(other: Any, tensor: Any) -> Any:
    return [tensor] if isinstance(other, list) else tensor


@dataclass(frozen=True)
class NamingStage:
    """A stage's computations: what they are handed must hold its name, what they make holds its own."""

    stage: int
    computed: list[Operation]

    def forward_step(self, *args: Any, current_microbatch: int, vp_stage: int = 0, **kwargs: Any) -> Any:
        received = args[4]
        activation = unwrapped(received)
        if activation is not None:
            assert named(activation) == MessageId(F, current_microbatch, self._upstream(vp_stage))
        output = tensor_of(MessageId(F, current_microbatch, vp_stage))
        self.computed.append(Operation(Kind.FORWARD, vp_stage, current_microbatch))
        return wrapped_as(received, output), torch.zeros([], dtype=torch.int)

    def backward_step(self, received: Any, output: Any, output_gradient: Any, *args: Any) -> Any:
        _, microbatch, chunk, _ = named(unwrapped(output))
        gradient = unwrapped(output_gradient)
        if gradient is not None:
            assert named(gradient) == MessageId(B, microbatch, chunk)
        self.computed.append(Operation(Kind.BACKWARD, chunk, microbatch))
        is_first = self.stage == 0 and chunk == 0
        return wrapped_as(output, None if is_first else tensor_of(MessageId(B, microbatch, self._upstream(chunk))))

    def _upstream(self, chunk: int) -> int:
        """The chunk whose output a chunk of this stage takes."""
        return chunk if self.stage else chunk - 1


def model_chunks(plan: Pass, *, overlap: bool) -> list[Any]:
    """Without weights, and with the configuration that megatron-core's schedules read."""
    from megatron.core.enums import ModelType
    from megatron.core.transformer.transformer_config import TransformerConfig

    interleaved = plan.chunks > 1
    config = TransformerConfig(
        num_layers=plan.stages * plan.chunks,
        hidden_size=1,
        num_attention_heads=1,
        pipeline_model_parallel_size=plan.stages,
        virtual_pipeline_model_parallel_size=plan.chunks if interleaved else None,
        microbatch_group_size_per_vp_stage=plan.group,
        pipeline_dtype=torch.float64,
        overlap_p2p_comm=overlap and interleaved,
        batch_p2p_comm=not (overlap and interleaved),
        deallocate_pipeline_outputs=False,
    )
    chunks: list[Any] = [torch.nn.Identity() for _ in range(plan.chunks)]
    for chunk in chunks:
        chunk.config, chunk.model_type = config, ModelType.encoder_or_decoder
    return chunks


@contextmanager
def alone(stage: int, pipeline: Group) -> Iterator[list[Operation]]:
    """megatron-core's schedules run one stage without other ranks and without computing. Gives what they would have
    computed."""
    from megatron.core.pipeline_parallel import p2p_communication, schedules
    from megatron.core.process_groups_config import ProcessGroupCollection

    groups = ProcessGroupCollection()
    groups.tp = groups.cp = groups.embd = groups.pos_embd = groups.dp_cp = Group(0, 1)
    groups.pp = pipeline
    computations = NamingStage(stage, [])
    with (
        patch.object(schedules, "forward_step", computations.forward_step),
        patch.object(schedules, "backward_step", computations.backward_step),
        patch.object(p2p_communication.dist, "get_global_rank", lambda group, rank: rank),
        patch("megatronapp.trainer.pipeline.schedule.process_groups", lambda: groups),
    ):
        yield computations.computed


def run_stage(plan: Pass, stage: int, *, overlap: bool) -> tuple[int, list[Operation]]:
    """Run the schedule of one stage. Returns the number of its messages, and its computations; asserts that all are
    what they are called."""
    from megatron.core.pipeline_parallel import schedules

    from megatronapp.trainer.pipeline.port import PipelineMessages
    from megatronapp.trainer.pipeline.schedule import PipelineSchedule
    from megatronapp.trainer.worlds import World

    pipeline: Any = Group(stage, plan.stages)
    posted: list[Any] = []
    messages = PipelineMessages(NamingTransport(), pipeline, World(ranks=tuple(range(plan.stages)), rank=stage))
    messages.observe(Counting(posted))
    chunks = model_chunks(plan, overlap=overlap)
    interleaved = plan.chunks > 1
    stock = (
        schedules.forward_backward_pipelining_with_interleaving
        if interleaved
        else schedules.forward_backward_pipelining_without_interleaving
    )
    with alone(stage, pipeline) as computed:
        PipelineSchedule(stock, chunks[0].config, messages)(
            forward_step_func=None,
            data_iterator=[iter(()) for _ in chunks] if interleaved else iter(()),
            model=chunks,
            num_microbatches=plan.microbatches,
            seq_length=1,
            micro_batch_size=1,
            forward_only=plan.forward_only,
        )
    return len(posted), computed


def check_schedules() -> None:
    from megatronapp.trainer import cpu

    cpu.install()
    # megatron-core believes a group's size only when torch.distributed is up.
    torch.distributed.init_process_group("gloo", store=HashStore(), rank=0, world_size=1)

    @settings(deadline=None, max_examples=150, database=None)
    @given(passes(), st.booleans(), st.data())
    def schedules_mean_what_is_derived(plan: Pass, overlap: bool, data: st.DataObject) -> None:
        plan = Pass(**{**vars(plan), "first": 0})
        stage = data.draw(st.integers(0, plan.stages - 1))

        count, computed = run_stage(plan, stage, overlap=overlap)

        streams = [plan.sends(stage, F), plan.sends(stage, B), plan.receives(stage, F), plan.receives(stage, B)]
        assert count == sum(map(len, streams))
        if not plan.forward_only:
            layout = Layout(stages=plan.stages, chunks=plan.chunks, microbatches=plan.microbatches)
            assert computed == interleaved(layout, stage, plan.group)

    schedules_mean_what_is_derived()


def test_the_schedules_of_megatron_core_compute_and_post_what_is_derived() -> None:
    run_forked(1, check_schedules)
