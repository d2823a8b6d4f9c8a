"""A training step whose stages choose their next operation while they run, over the port.

Each stage runs core/pipeline's policy on the messages that have come. It calls megatron-core's forward_step and
backward_step, so that what watches these sees them. A chunk's microbatches keep their order, and so do its gradients
and its data, which each chunk reads from an iterator of its own: results are bitwise those of megatron-core's
schedules.

The ranks that hold a stage together follow the first of them (agreement.py). Gradients are reduced chunk by chunk, the
last one first, each as soon as it and those before it are there: replicas that chose other orders still reduce in the
same one. On a GPU a choice is made shortly before the newest operation ends there (pace.py), not earlier: less would be
known. Evaluation goes to megatron-core's schedule.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, cast

import torch
from megatron.core import parallel_state
from megatron.core.utils import get_model_config

from megatronapp.core.errors import TrainingError, UsageError
from megatronapp.core.pipeline.operations import Operation
from megatronapp.core.pipeline.placement import Layout
from megatronapp.core.pipeline.policy import StagePolicy
from megatronapp.core.pipeline.running_ahead import MOST_LAUNCHED, RECEIVES_AHEAD
from megatronapp.trainer.pipeline.agreement import Agreement
from megatronapp.trainer.pipeline.dynamic_step import AnyOrderTransport, Step
from megatronapp.trainer.pipeline.pace import Durations, GivenOrder, Mark, Pace
from megatronapp.trainer.pipeline.port import PipelineMessages
from megatronapp.trainer.pipeline.schedule import process_groups
from megatronapp.trainer.pipeline.wgrad import DeferredWgrad

REFUSED = (
    "mtp_num_layers",
    "overlap_moe_expert_parallel_comm",
    "defer_embedding_wgrad_compute",
    "num_microbatches_with_partial_activation_checkpoints",
    "cuda_graph_impl",  # graphs are captured in, and for, the order of megatron-core's schedule
)
"""Settings of megatron-core that change what its schedules do."""
UNSET = (None, False, 0, "none")

MakePolicy = Callable[[Layout, int], StagePolicy]
"""(layout, stage) -> the stage's policy for one step."""
Places = Callable[[int], Sequence[int]]
"""(stage) -> the place of each of its operations in its hint, by number."""


class DynamicSchedule:
    """In place of megatron-core's schedule for training steps; `stock` runs evaluations.

    `ran` is what this stage ran in the newest step, in its order, and `dispatch_seconds` what choosing and posting
    receives took. Dropout is drawn in the order of execution: with it, and several chunks, results differ from stock's,
    unless draws are keyed.
    `agreement` is needed where several tensor-, context- or expert-parallel ranks hold a stage. With `wgrad`, which is
    installed in the models, W is an operation of its own. With `places`, of the messages that wait for a link the one
    that its receiver's hint needs first goes first. `receives_ahead`: messages of a lane; `most_launched`: operations
    of an order that is given (core/pipeline/running_ahead.py).
    Raises UsageError for what it can't run: a transport that needs one order, and REFUSED settings.
    """

    def __init__(
        self,
        stock: Callable[..., Any],
        messages: PipelineMessages,
        make_policy: MakePolicy,
        agreement: Agreement | None = None,
        wgrad: DeferredWgrad | None = None,
        places: Places | None = None,
        receives_ahead: int = RECEIVES_AHEAD,
        most_launched: int = MOST_LAUNCHED,
    ) -> None:
        self._stock = stock
        self._messages = messages
        self._make_policy = make_policy
        self._agreement = agreement
        self._wgrad = wgrad
        self.places = places
        self._receives_ahead, self._most_launched = receives_ahead, most_launched
        self.durations = Durations()
        self.ran: list[Operation] = []
        self.dispatch_seconds = 0.0
        self._groups = process_groups()
        if messages.transport.ordered:
            raise UsageError("a dynamic pipeline order needs messages in any order: add --p2p-transport native")
        self._check_groups()

    def _check_groups(self) -> None:
        experts = parallel_state.get_expert_model_parallel_world_size()
        if self._agreement is None and max(self._groups.tp.size(), self._groups.cp.size(), experts) > 1:
            raise UsageError("a dynamic pipeline order needs an agreement where several ranks hold a stage")

    def __call__(self, *, forward_only: bool, **kwargs: Any) -> Any:
        """Raises TrainingError when a message failed or never came, before its tensors can change a parameter."""
        if forward_only:
            return self._stock(forward_only=True, **kwargs)
        step = self._begin(**kwargs)
        try:
            step.run()
            self._messages.end_pass()
        except self._messages.transport.errors as error:
            raise TrainingError(f"a message between pipeline stages failed: {error}") from error
        except RuntimeError as error:
            lost = cast(AnyOrderTransport, self._messages.transport).lost()
            if not lost:
                raise
            raise TrainingError(f"a collective of a pipeline stage failed: {lost}") from error
        self.ran, self.dispatch_seconds = step.ran, step.dispatch_seconds
        step.finish()
        return step.losses

    def _begin(
        self, *, forward_step_func: Any, data_iterator: Any, model: Any, num_microbatches: int, seq_length: int,
        micro_batch_size: int,
    ) -> Step:  # fmt: skip
        chunks: list[Any] = model if isinstance(model, list) else [model]
        config = get_model_config(chunks[0])
        for name in REFUSED:
            if getattr(config, name) not in UNSET:
                raise UsageError(f"a dynamic pipeline order can't run with {name}; unset it")
        group = self._messages.group
        layout = Layout(
            stages=group.size(), chunks=len(chunks), microbatches=num_microbatches, split=self._wgrad is not None
        )
        first = self._messages.begin_pass(num_microbatches)
        if self._agreement is not None:
            self._agreement.begin(layout.operations)
        sequence = seq_length // self._groups.cp.size()
        if config.sequence_parallel:
            sequence //= self._groups.tp.size()
        policy = self._make_policy(layout, group.rank())
        return self._make_step(
            layout=layout,
            stage=group.rank(),
            policy=policy,
            messages=self._messages,
            groups=self._groups,
            agreement=self._agreement,
            wgrad=self._wgrad or DeferredWgrad(),
            places=self.places,
            first=first,
            config=config,
            chunks=chunks,
            forward_step=forward_step_func,
            data=data_iterator if isinstance(data_iterator, list) else [data_iterator],
            shape=(sequence, micro_batch_size, config.hidden_size),
            receives_ahead=self._receives_ahead,
            pace=self._pace_on_device(policy) if next(chunks[0].parameters()).is_cuda else None,
        )

    def _pace_on_device(self, policy: StagePolicy) -> Pace | GivenOrder | None:
        return GivenOrder(_mark, self._most_launched) if policy.strict else Pace(_mark, self.durations)

    def _make_step(self, **parts: Any) -> Step:
        return Step(**parts)


def _mark() -> Mark:
    event = torch.cuda.Event(enable_timing=True)
    event.record()
    return event
