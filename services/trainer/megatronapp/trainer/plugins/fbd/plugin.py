"""The plug-in: flags, the two worlds, and what a rank of each does at the trainer's hooks."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import timedelta
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar

import torch
import torch.distributed as dist
from megatron.core import parallel_state
from megatron.core.transformer.transformer_config import TransformerConfig
from torch._C._distributed_c10d import PrefixStore

from megatronapp.core.errors import TrainingError
from megatronapp.core.logging import get_logger
from megatronapp.core.pipeline.partition import Mode
from megatronapp.core.trace.values import Progress
from megatronapp.trainer.environment import Environment
from megatronapp.trainer.keyed_dropout import KeyedDropout, KeyedStates
from megatronapp.trainer.pipeline.alone import NoTransport
from megatronapp.trainer.pipeline.lost_peers import LostPeers
from megatronapp.trainer.pipeline.port import PipelineMessages
from megatronapp.trainer.pipeline.wgrad import DeferredWgrad
from megatronapp.trainer.plugins.base import (
    ForwardStep,
    Plugin,
    PluginContext,
    Preparation,
    Runner,
    ScheduleFunction,
    StepHooks,
)
from megatronapp.trainer.plugins.fbd import plan as flags
from megatronapp.trainer.plugins.fbd.backward import RecomputeSchedule
from megatronapp.trainer.plugins.fbd.beside import Beside
from megatronapp.trainer.plugins.fbd.figures import CPU_SPEED, FIGURES, FORWARD_SPEED
from megatronapp.trainer.plugins.fbd.forward import STOP_KEY, ForwardLoop
from megatronapp.trainer.plugins.fbd.inputs import Inputs
from megatronapp.trainer.plugins.fbd.layers import ReceivedLayers
from megatronapp.trainer.plugins.fbd.linears import ReceivedLinears
from megatronapp.trainer.plugins.fbd.link import Go, Link
from megatronapp.trainer.plugins.fbd.ordered_step import step_in_order
from megatronapp.trainer.plugins.fbd.pending import Kind
from megatronapp.trainer.plugins.fbd.plan import Plan
from megatronapp.trainer.plugins.fbd.roles import Role, Roles
from megatronapp.trainer.plugins.fbd.weights import Sending, shared_parameters
from megatronapp.trainer.worlds import World

if TYPE_CHECKING:
    from megatronapp.trainer.batches import Batches

log = get_logger(__name__)

LOST_SECONDS = 1.0
"""So soon the engine knows of a twin whose process has ended."""
DATA_KEY = "fbd/data"
"""Set when the backward world has built the indices of the data, which the forward world then finds."""


class FbdPlugin(Plugin):
    """Each rank is one of its two kinds."""

    name: ClassVar[str] = "fbd"

    @classmethod
    def add_arguments(cls, parser: argparse.ArgumentParser) -> None:
        group = parser.add_argument_group("MegaFBD")
        group.add_argument(
            flags.SWITCH,
            action="store_true",
            help="run forward passes on some ranks and backward passes on others; all other flags speak of the "
            "backward ones",
        )
        group.add_argument(
            flags.IGNORE_TENSOR,
            action="store_true",
            help="one forward rank for each group of tensor-parallel backward ranks",
        )
        group.add_argument(
            flags.FORWARD_TENSOR,
            type=int,
            metavar="N",
            help="forward ranks that share each layer (default: as many as backward ranks)",
        )
        group.add_argument(
            flags.FORWARD_PIPELINE,
            type=int,
            metavar="N",
            help="pipeline stages of the forward ranks (default: as many as the backward ranks have)",
        )
        group.add_argument(
            flags.MODE,
            choices=(*Mode, flags.AUTO),
            help="what a backward stage gets: the input of its layers; or also what their linears make, so that it "
            "runs only the rest again; or also what each layer makes, so that it runs one layer at a time again and "
            "holds no more than that; auto: the one that pays, and an error where none does (default: input)",
        )
        cls._add_figures(group)
        group.add_argument(
            flags.SLOTS,
            type=int,
            metavar="N",
            help="microbatches whose input a backward stage takes ahead, for each of its chunks (default: twice as "
            "many as there are stages; with linears and layers two more than there are)",
        )
        group.add_argument(
            flags.APART,
            action="store_true",
            help="number all backward ranks before the forward ranks, so that each have nodes of their own (default: "
            "a replica's ranks lie together)",
        )
        group.add_argument(
            flags.CPUS,
            action="store_true",
            help="forward ranks run on CPUs, beside backward ranks on GPUs: for stages that are small",
        )

    @staticmethod
    def _add_figures(group: argparse._ArgumentGroup) -> None:
        """What auto and warnings reckon with."""
        group.add_argument(
            FORWARD_SPEED,
            type=float,
            metavar="X",
            help="speed of a forward device; 1 is a backward device's, for --fbd-mode auto and warnings (default: 1; "
            f"{CPU_SPEED:g} on CPUs)",
        )
        for flag, (default, text) in FIGURES.items():
            said = f"{text}, for --fbd-mode auto and warnings (default: {default:g})"
            group.add_argument(flag, type=float, metavar="X", help=said)

    @classmethod
    def prepare(cls, args: argparse.Namespace, preparation: Preparation) -> Preparation:
        if not args.forward_backward_disaggregating:
            flags.refuse_without_switch(args)
            return preparation
        environment = preparation.environment
        plan = Plan.of(args, environment.world_size)
        role = plan.roles.place(environment.rank).role
        ranks = plan.roles.ranks(role)
        prepared = replace(
            preparation,
            role=str(role),
            world=World(ranks=ranks, rank=ranks.index(environment.rank), name=str(role)),
            p2p_transport="native",
        )
        if plan.forward_on_cpus:
            prepared = _beside_cpus(prepared, plan.roles)
        if role is Role.BACKWARD:
            return prepared
        return replace(
            prepared,
            environment=replace(prepared.environment, checkpoint_dir=""),  # checkpoints are the backward world's
            config=plan.forward,
            own_layout=plan.forward_layout,
        )

    @classmethod
    def create(cls, args: argparse.Namespace, context: PluginContext) -> Plugin | None:  # type: ignore[override]
        if not args.forward_backward_disaggregating:
            return None
        kind = ForwardPlugin if context.placement.role == Role.FORWARD else BackwardPlugin
        return kind(args, context)

    def __init__(self, args: argparse.Namespace, context: PluginContext) -> None:
        assert context.store is not None, "the trainer gives one"  # noqa: S101
        identity, world_size = context.identity, context.placement.sizes.world
        self._context = context
        self._store = context.store
        self._plan = plan = Plan.of(args, world_size)
        self._link = Link(
            plan.roles,
            plan.backward.parallel,
            Environment(rank=identity.rank, world_size=world_size, job=identity.job, attempt=identity.attempt),
            PrefixStore("fbd", context.store),
            receive_bytes=plan.receive_bytes if context.placement.role == Role.BACKWARD else 0,
        )
        self._lost_peers: LostPeers | None = None
        drops = args.hidden_dropout > 0 or args.attention_dropout > 0
        self._seed: int | None = args.seed if drops else None

    def configure(self, config: TransformerConfig) -> None:
        config.deallocate_pipeline_outputs = False  # they are still being sent
        self._transformer = config

    def failure(self, error: Exception) -> Exception | None:
        """Who waits in a collective or for the store is told of a connection alone: the engine knows whose."""
        self._stop_watching()
        if isinstance(error, torch.OutOfMemoryError) or not isinstance(error, RuntimeError | TrainingError):
            return None
        lost = self._link.lost(LOST_SECONDS)
        return TrainingError(lost) if lost and lost not in str(error) else None

    def close(self) -> None:
        self._stop_watching()
        self._link.abort()

    def _watch_peers(self) -> None:
        """From when all twins are there until the rank ends by itself."""
        self._lost_peers = LostPeers(partial(self._link.lost, 0.0))

    def _stop_watching(self) -> None:
        if self._lost_peers is not None:
            self._lost_peers.stop()


def _beside_cpus(prepared: Preparation, roles: Roles) -> Preparation:
    """Forward ranks see no GPU; a host's GPUs are counted by its backward ranks alone."""
    environment = prepared.environment
    if prepared.role == Role.FORWARD:
        return replace(prepared, variables={**prepared.variables, "CUDA_VISIBLE_DEVICES": ""})
    first = environment.rank - environment.local_rank
    before = sum(roles.place(rank).role is Role.BACKWARD for rank in range(first, environment.rank))
    return replace(prepared, environment=replace(environment, local_rank=before))


class ForwardPlugin(FbdPlugin):
    """Of a rank in the forward world."""

    def models(self, chunks: Sequence[torch.nn.Module]) -> None:
        patience = timedelta(minutes=self._plan.backward.parallel.distributed_timeout_minutes)
        self._store.wait([DATA_KEY], patience)

    def runner(self, chunks: Sequence[torch.nn.Module], batches: Batches, hooks: StepHooks) -> Runner:
        states = None if self._seed is None else KeyedStates(self._seed, self._context.device)
        return ForwardLoop(
            chunks,
            batches,
            hooks,
            self._context,
            self._transformer,
            self._link,
            self._plan,
            states,
        )

    def training_begin(self, step: int, consumed_samples: int, *, loaded: bool) -> None:
        self._watch_peers()

    def training_end(self) -> None:
        self._stop_watching()
        self._link.close()


class BackwardPlugin(FbdPlugin):
    """Of a rank in the backward world: the trainer's own loop with another schedule."""

    def __init__(self, args: argparse.Namespace, context: PluginContext) -> None:
        super().__init__(args, context)
        self._leads = self._link.place == next(self._plan.roles.of_replica(Role.BACKWARD, self._link.place.replica))
        self._dropout = None if self._seed is None else KeyedDropout(self._seed, context.device)
        self._inputs = Inputs(self._link, self._plan.partition, *self._plan.sequences, self._plan.slots)
        self._beside: Beside | None = None
        self._wgrad = DeferredWgrad() if self._plan.partition.backward.split else None
        self._args = args
        self._optimizer: Any = None
        self._loaded = self._weights_due = False
        self._consumed_samples = 0

    def models(self, chunks: Sequence[torch.nn.Module]) -> None:
        if self._context.world.rank == 0 and (reason := flags.doubts(self._args, self._plan)):
            log.warning("fbd_does_not_pay", reason=reason)
        self._chunks = chunks
        partition, (_, sequence) = self._plan.partition, self._plan.sequences
        if partition.mode is Mode.LINEARS:
            self._beside = ReceivedLinears(self._link, partition, chunks, sequence.tokens, self._wgrad)
        elif partition.mode is Mode.LAYERS:
            self._beside = ReceivedLayers(self._link, self._inputs, partition, chunks, sequence.shard(0).length)
        elif self._wgrad is not None:
            self._wgrad.install(chunks)

    def forward_step(self, function: ForwardStep) -> ForwardStep:
        return function if self._dropout is None else self._dropout.wrap(function)

    def schedule(self, function: ScheduleFunction) -> ScheduleFunction:
        self._store.set(DATA_KEY, "1")  # a schedule is made when the data is there
        recompute = RecomputeSchedule(function, self._messages(), self._inputs, self._beside, self._wgrad)

        def run(**kwargs: Any) -> Any:
            self._link.hand_over()  # the weights: who does not have them sends no inputs
            losses = recompute(**kwargs)
            self._link.check()
            return losses

        return run

    def _messages(self) -> PipelineMessages:
        """To the stages before and after this one."""
        group = parallel_state.get_pipeline_model_parallel_group()
        return self._context.pipeline or PipelineMessages(NoTransport(), group, self._context.world)

    def training_begin(self, step: int, consumed_samples: int, *, loaded: bool) -> None:
        # What the forward world begins with; CPUs draw other first weights than GPUs.
        self._consumed_samples, self._loaded = consumed_samples, loaded or self._plan.forward_on_cpus
        # Now: the wrapped model has moved the parameters to where they stay.
        parameters = shared_parameters(self._chunks, self._transformer, self._plan.partition)
        self._sending = Sending(self._link, self._plan.partition, parameters)
        step_in_order(self._optimizer, self._sending.layer_of, self._sending.final)
        self._watch_peers()

    def step_begin(self, step: int) -> None:
        if self._dropout is not None:
            self._dropout.begin_step(step)
        if self._loaded or self._weights_due:
            self._send_weights()
        self._link.begin_turn()
        self._say(Go(step, self._consumed_samples, int(self._loaded)))
        self._loaded, self._weights_due = False, True

    def optimizer_built(self, optimizer: Any) -> None:
        self._optimizer = optimizer

    def optimizer(self, step: Callable[[], Any]) -> Callable[[], Any]:
        def run() -> Any:
            self._sending.begin()
            outcome = step()
            self._sending.rest()
            self._weights_due = False
            return outcome

        return run

    def _send_weights(self) -> None:
        """Before a step: those of a checkpoint, and after a step without its optimizer's, which was left out or is gone
        back from."""
        self._sending.begin()
        self._sending.rest()
        self._weights_due = False

    def step_end(self, step: int, progress: Progress | None) -> None:
        if self._context.world.rank == 0 and self._store.check([STOP_KEY]):
            self._context.request_stop()

    def training_end(self) -> None:
        self._stop_watching()
        if self._weights_due:
            self._send_weights()
        self._link.begin_turn()
        dist.barrier()  # a forward rank may hold the store, which other stages still look into behind the last step
        self._say(Go(0, 0, 0))
        self._link.close()

    def _say(self, go: Go) -> None:
        if self._leads:
            for twin in self._link.twins:
                self._link.send(go.tensor(), twin, Kind.GO)
