"""The plug-in: the dynamic schedule in place of megatron-core's, with the policy that the flags ask for."""

from __future__ import annotations

import argparse
import time
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, ClassVar, Self, cast

import torch
import torch.distributed as dist
from megatron.core import parallel_state
from megatron.core.transformer.transformer_config import TransformerConfig

from megatronapp.core.errors import TrainingError, UsageError
from megatronapp.core.logging import get_logger
from megatronapp.core.pipeline.placement import Layout
from megatronapp.core.pipeline.policy import StagePolicy
from megatronapp.core.trace.values import Progress
from megatronapp.trainer.keyed_dropout import KeyedDropout
from megatronapp.trainer.pipeline.agreement import Agreement
from megatronapp.trainer.pipeline.dynamic import DynamicSchedule
from megatronapp.trainer.pipeline.dynamic_step import AnyOrderTransport
from megatronapp.trainer.pipeline.lost_peers import LostPeers
from megatronapp.trainer.pipeline.native import NativeTransport
from megatronapp.trainer.pipeline.port import PipelineMessages
from megatronapp.trainer.pipeline.wgrad import DeferredWgrad
from megatronapp.trainer.plugins.base import ForwardStep, Plugin, PluginContext, Preparation, ScheduleFunction
from megatronapp.trainer.plugins.dpp.orders_file import OrdersFile, refuse_unwritable
from megatronapp.trainer.plugins.dpp.policies import AUTO, PLACES_FOR_W, POLICIES, REPLAY, Policies
from megatronapp.trainer.plugins.dpp.trial import DYNAMIC, PLANNED, STOCK, Trial
from megatronapp.trainer.transformer_engine import puts_off_wgrad

log = get_logger(__name__)

LANES = ("auto", "shm", "cuda_ipc", "tcp", "ucx")
IN_FLIGHT_BYTES = 8 << 20
"""To one peer at once, and at least one message: what a link of 50 GB/s moves in 0.16 ms, for which what is needed
first waits at most. Chosen by that, not measured on GPUs."""


THEIRS = "--transformer-impl transformer_engine"
WHOLE = "in their backward passes, as without --use-dpp"


class DppPlugin(Plugin):
    """Training steps run in the order that each stage chooses; evaluation stays stock's."""

    name: ClassVar[str] = "dpp"

    @classmethod
    def add_arguments(cls, parser: argparse.ArgumentParser) -> None:
        group = parser.add_argument_group("MegaDPP")
        group.add_argument(
            "--use-dpp", action="store_true", help="let pipeline stages choose their next operation while they run"
        )
        group.add_argument(
            "--dpp-policy",
            choices=POLICIES,
            default=AUTO,
            help="what a stage prefers of what it can run: auto is interleaved-zb (interleaved where W stays in B), "
            "that order as it is, or megatron-core's schedule, whichever is measured fastest; replay runs the order in "
            "--dpp-order (default %(default)s)",
        )
        group.add_argument(
            "--dpp-cap",
            type=int,
            metavar="N",
            help="activations (a microbatch on a chunk) that a stage holds at most; default: megatron-core's peak",
        )
        group.add_argument(
            "--dpp-no-split",
            action="store_true",
            help="run a backward pass as one, the gradients of weights (W) included; default: W is put off where the "
            "model's implementation allows it",
        )
        group.add_argument(
            "--dpp-order",
            type=Path,
            metavar="FILE.csv",
            help="with replay the order to run; else the newest step's order is written there at the end",
        )
        group.add_argument(
            "--dpp-transport",
            choices=LANES,
            default=LANES[0],
            help="lane that messages must take (default the fastest)",
        )

    @classmethod
    def prepare(cls, args: argparse.Namespace, preparation: Preparation) -> Preparation:
        if not args.use_dpp:
            _refuse_without_switch(args)
            return preparation
        if preparation.layout.pipeline < 2:
            raise UsageError("--use-dpp needs a pipeline: give --pipeline-model-parallel-size 2 or more")
        sizes = preparation.layout
        policies = _policies(args, sizes.pipeline, sizes.virtual or 1, sizes.microbatches)  # refused before the start
        if policies.layout.split:
            _refuse_what_is_not_split(args)
        if _of_transformer_engine(args) and not policies.layout.split and preparation.environment.rank == 0:
            log.info("dpp_transformer_engine", wgrad=WHOLE, since=_why_whole(args) or "--dpp-order")
        if args.dpp_order is not None and args.dpp_policy != REPLAY and preparation.environment.rank == 0:
            refuse_unwritable(args.dpp_order)
        lane = "" if args.dpp_transport == LANES[0] else args.dpp_transport
        return replace(preparation, p2p_transport="native", p2p_lane=lane, p2p_in_flight_bytes=IN_FLIGHT_BYTES)

    @classmethod
    def create(cls, args: argparse.Namespace, context: PluginContext) -> Self | None:
        return cls(args, context) if args.use_dpp else None

    def __init__(self, args: argparse.Namespace, context: PluginContext) -> None:
        assert context.pipeline is not None, "prepare has refused a run without a pipeline"  # noqa: S101
        self._pipeline = context.pipeline
        self._device = context.device
        self._transformer_engine = _of_transformer_engine(args)
        self._lost_peers = LostPeers(partial(cast(NativeTransport, context.pipeline.transport).lost, 0.0))
        self._agreement = agreement(context.pipeline)
        sizes = context.placement.sizes
        self._policies = _policies(args, sizes.pipeline, sizes.virtual_pipeline, context.schedule.microbatches)
        layout = self._policies.layout
        self._wgrad = DeferredWgrad() if layout.split else None
        planned = [PLANNED] * self._policies.has_plan
        self._trial = Trial((DYNAMIC, *planned, STOCK) if args.dpp_policy == AUTO else (DYNAMIC,))
        self._recorded = None
        if args.dpp_order is not None and args.dpp_policy != REPLAY:
            self._recorded = OrdersFile(args.dpp_order, layout, context)
        drops = args.hidden_dropout > 0 or args.attention_dropout > 0
        self._dropout = KeyedDropout(args.seed, context.device) if drops else None
        self._step = 0
        self._began = 0.0

    def configure(self, config: TransformerConfig) -> None:
        config.deallocate_pipeline_outputs = True  # the engine keeps what is still being sent
        if self._wgrad is not None and self._transformer_engine:
            config.delay_wgrad_compute = True  # megatron-core asks for more where it is a flag, which this needs not

    def models(self, chunks: Sequence[torch.nn.Module]) -> None:
        if self._wgrad is not None:
            self._wgrad.install(chunks)

    def forward_step(self, function: ForwardStep) -> ForwardStep:
        return function if self._dropout is None else self._dropout.wrap(function)

    def schedule(self, function: ScheduleFunction) -> ScheduleFunction:
        self.dynamic = dynamic = DynamicSchedule(
            function,
            self._pipeline,
            self._policy,
            self._agreement,
            self._wgrad,
            self._policies.places,
            self._policies.receives_ahead,
            self._policies.most_launched,
        )

        def run(**kwargs: Any) -> Any:
            if kwargs["forward_only"]:
                return function(**kwargs)
            if self._trial.kind == STOCK:
                with nullcontext() if self._wgrad is None else self._wgrad.at_once():
                    return function(**kwargs)
            losses = dynamic(**kwargs)
            if self._recorded is not None:
                self._recorded.keep(self._step, dynamic.ran)
            return losses

        return run

    def _policy(self, layout: Layout, stage: int) -> StagePolicy:
        if self._trial.kind == PLANNED:
            return self._policies.planned(layout, stage)
        return self._policies(layout, stage)

    def step_begin(self, step: int) -> None:
        self._step = step
        if self._dropout is not None:
            self._dropout.begin_step(step)
        self._began = time.perf_counter()

    def step_end(self, step: int, progress: Progress | None) -> None:
        if self._trial.ended(time.perf_counter() - self._began):
            slowest = torch.tensor(self._trial.medians, dtype=torch.float64, device=self._device)
            dist.all_reduce(slowest, op=dist.ReduceOp.MAX)
            seconds = dict(zip(self._trial.kinds, slowest.tolist(), strict=True))
            self._trial.decide(list(seconds.values()))
            if dist.get_rank() == 0:
                took = {f"{kind}_ms": round(each * 1e3, 3) for kind, each in seconds.items()}
                log.info("dpp_trial", chosen=self._trial.kind, **took)

    def failure(self, error: Exception) -> Exception | None:
        """Who waited in a collective is told of a connection alone: the engine knows whose."""
        self._lost_peers.stop()
        if isinstance(error, torch.OutOfMemoryError) or not isinstance(error, RuntimeError | TrainingError):
            return None
        lost = cast(AnyOrderTransport, self._pipeline.transport).lost()
        return TrainingError(lost) if lost and lost not in str(error) else None

    def close(self) -> None:
        self._lost_peers.stop()
        if self._recorded is not None:
            self._recorded.write()


def _refuse_without_switch(args: argparse.Namespace) -> None:
    given = {
        "--dpp-policy": args.dpp_policy != AUTO,
        "--dpp-cap": args.dpp_cap is not None,
        "--dpp-no-split": args.dpp_no_split,
        "--dpp-order": args.dpp_order is not None,
        "--dpp-transport": args.dpp_transport != LANES[0],
    }
    for flag, is_given in given.items():
        if is_given:
            raise UsageError(f"{flag} does nothing without --use-dpp: add it, or leave {flag} out")


def _whole(args: argparse.Namespace) -> dict[str, bool]:
    """What there is in a run that leaves every W in its B. Transformer Engine's layers put off all of it or none: W
    hides no collective then, and what is recomputed for it would be held."""
    theirs = _of_transformer_engine(args)
    return {
        "--dpp-no-split": args.dpp_no_split,
        "--recompute-method uniform": args.recompute_method == "uniform",
        f"{THEIRS} and --tensor-model-parallel-size": theirs and args.tensor_model_parallel_size > 1,
        f"{THEIRS} and --recompute-granularity": theirs and args.recompute_granularity is not None,
        f"{THEIRS} before its version 2.3": theirs and not puts_off_wgrad(),
    }


def _of_transformer_engine(args: argparse.Namespace) -> bool:
    return bool(args.transformer_impl != "local")


def _why_whole(args: argparse.Namespace) -> str:
    """ "" where W is put off."""
    return next((flag for flag, is_given in _whole(args).items() if is_given), "")


def _refuse_what_is_not_split(args: argparse.Namespace) -> None:
    if flag := _why_whole(args):
        raise UsageError(f"--dpp-policy {args.dpp_policy} can't split W from B with {flag}: leave one of them out")


def _policies(args: argparse.Namespace, stages: int, chunks: int, microbatches: int) -> Policies:
    split = args.dpp_policy in PLACES_FOR_W or (args.dpp_policy != REPLAY and not _why_whole(args))
    layout = Layout(stages=stages, chunks=chunks, microbatches=microbatches, split=split)
    return Policies(layout, args.dpp_policy, args.dpp_cap, args.dpp_order)


def _ranks_that_agree() -> list[int]:
    """Tensor- and context-parallel ranks; with experts that replicas share, those of all replicas."""
    group = parallel_state.get_tensor_and_context_parallel_group()
    if parallel_state.get_expert_model_parallel_world_size() > 1:
        group = parallel_state.get_tensor_and_data_parallel_group(with_context_parallel=True)
    return dist.get_process_group_ranks(group)


def agreement(pipeline: PipelineMessages) -> Agreement | None:
    """Of the ranks that run this stage's collectives together; None where this rank has none. Raises TrainingError."""
    ranks = _ranks_that_agree()
    if len(ranks) == 1:
        return None
    transport = pipeline.transport
    assert isinstance(transport, NativeTransport), "prepare has asked for it"  # noqa: S101
    try:
        return Agreement(transport.engine, ranks)
    except transport.errors as error:
        raise TrainingError(f"the ranks of this pipeline stage can't reach each other: {error}") from error
