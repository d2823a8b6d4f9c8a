"""Ranks of a model that is only arrays: they dial a gateway as agents do, and reduce and pack by the reference."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from itertools import product
from typing import Any

import grpc
import numpy as np
import numpy.typing as npt
from grpc import aio

from megatronapp.core.scope.expression import parse
from megatronapp.core.scope.frame import Section, pack
from megatronapp.core.scope.layout import piece_index, pieces
from megatronapp.core.scope.quantize import Values
from megatronapp.core.scope.reduce import reduce_shard
from megatronapp.core.scope.results import to_frame
from megatronapp.core.scope.sites import Axis, Coordinates, Model, Site, standard_sites
from megatronapp.core.scope.wire import site_to_proto
from megatronapp.core.tls import ClientTls, open_channel
from megatronapp.v1 import scope_pb2, scope_pb2_grpc, trace_pb2

MODEL = Model(
    layers=4, hidden=16, heads=4, head_channels=4, mlp_channels=32, vocabulary=40, query_groups=2, batch=2, tokens=8
)


CLEAR_TEXT = ClientTls()


def values_of(site: Site, layer: int | None, step: int) -> npt.NDArray[np.float32]:
    """The whole model's values of one layer at one step: the same for every rank that asks."""
    random = np.random.default_rng(_seed(site.name, layer, step))
    array = random.normal(size=[axis.size for axis in site.axes]).astype(np.float32)
    return np.abs(array) if site.name.endswith("probs") else array


def _seed(name: str, layer: int | None, step: int) -> int:
    return sum(map(ord, name)) * 1_000_003 + (0 if layer is None else layer + 1) * 1009 + step


@dataclass
class FakeRank:
    """One rank's stream. It answers commands, keeps what it was asked, and sends frames when `step` is called."""

    rank: int
    sites: list[Site]
    placement: trace_pb2.Placement
    run: str = "run-1"
    job: str = "team/gpt"
    attempt: int = 1
    roles: Sequence[str] = ("train", "generate", "perturb")
    token: str = "pods-token"
    demand: scope_pb2.ScopeDemand = field(default_factory=scope_pb2.ScopeDemand)
    commands: list[scope_pb2.ScopeCommand] = field(default_factory=list)
    confirms: bool = False
    """Whether it says that a demand is in force there; a test says it."""
    refuse: str = ""
    """The code with which commands are refused."""
    beside: dict[Section, bytes] = field(default_factory=dict)
    """What goes with each frame."""
    call: Any = None
    received: int = 0
    """Events that the gateway said it has."""
    _writing: asyncio.Lock = field(default_factory=asyncio.Lock)
    _changed: asyncio.Condition = field(default_factory=asyncio.Condition)

    async def attach(self, channel: aio.Channel) -> None:
        """Return when the gateway has taken the hello; raises its refusal."""
        stub = scope_pb2_grpc.ScopeIngestStub(channel)  # type: ignore[no-untyped-call]
        self.call = stub.Attach(metadata=[("authorization", f"Bearer {self.token}")])
        await self.call.write(scope_pb2.ScopeUp(hello=self.hello()))
        first = await self.call.read()
        if not isinstance(first, scope_pb2.ScopeDown):
            raise AssertionError(f"{await self.call.code()}: {await self.call.details()}")
        assert first.HasField("accepted")
        self.received = first.accepted.received_events

    def hello(self) -> scope_pb2.ScopeHello:
        identity = trace_pb2.Identity(
            run=self.run, job=self.job, attempt=self.attempt, rank=self.rank, incarnation=self.rank + 1
        )
        model = scope_pb2.ScopeModel(
            name="gpt", layers=MODEL.layers, hidden=MODEL.hidden, sequence_length=8, micro_batch_size=1, microbatches=1
        )
        return scope_pb2.ScopeHello(
            identity=identity,
            placement=self.placement,
            roles=self.roles,
            model=model,
            sites=[site_to_proto(site) for site in self.sites],
            confirms_demands=self.confirms,
        )

    async def listen(self) -> None:
        """Until the gateway ends the stream."""
        while isinstance(message := await self.call.read(), scope_pb2.ScopeDown):
            async with self._changed:
                if message.HasField("demand"):
                    self.demand = message.demand
                else:
                    self.commands.append(message.command)
                self._changed.notify_all()
            if message.HasField("command"):
                ack = scope_pb2.ScopeAck(command=message.command.id, code=self.refuse, effective_step=12)
                await self.send(ack=ack)

    async def asked(self, taps: int) -> None:
        """Until so many taps are asked for."""
        async with self._changed:
            await self._changed.wait_for(lambda: len(self.demand.taps) == taps)

    async def commanded(self, count: int = 1) -> None:
        async with self._changed:
            await self._changed.wait_for(lambda: len(self.commands) >= count)

    async def step(self, step: int, request: str = "") -> None:
        for frame in self.frames(step, request):
            await self.send(frame=frame)

    async def event(self, number: int = 0, **body: Any) -> None:
        """`number`: of one that may have been sent before."""
        await self.send(event=scope_pb2.ScopeEvent(unix_ns=1, **body), event_number=number)

    async def send(self, **body: Any) -> None:
        """One message at a time, as a stream takes them."""
        async with self._writing:
            await self.call.write(scope_pb2.ScopeUp(**body))

    def frames(self, step: int, request: str = "") -> Iterator[scope_pb2.ScopeFrame]:
        """What is asked for, of one step."""
        for tap in self.demand.taps:
            if tap.request not in ("", request) or step % max(tap.every_steps, 1):
                continue
            expression = parse(tap.expression)
            site = next(site for site in self.sites if site.name == expression.selector.site)
            chosen = expression.selector.numbers(MODEL.layers)
            for layer in sorted(set(chosen) & set(site.layers)) if chosen else [None]:
                whole = values_of(site, layer, step)
                values = Values(whole[np.ix_(*(pieces(axis)[piece_index(axis)] for axis in site.axes))])
                result = reduce_shard(values, site.axes, expression.operations, partial=tap.partial)
                if result is None:
                    continue
                frame = to_frame(result, tap.quantizer)
                sections = {**frame.sections, Section.EXTENT: _extents(site.axes), **self.beside}
                if request:
                    sections[Section.REQUEST] = request.encode()
                addressed = replace(
                    frame,
                    subscription=tap.id,
                    step=step,
                    layer=layer,
                    microbatch=0,
                    captured_unix_us=step,
                    sections=sections,
                )
                yield scope_pb2.ScopeFrame(tap=tap.id, frame=pack(addressed))


def _extents(axes: Sequence[Axis]) -> bytes:
    return np.array([axis.size for axis in axes], "<u4").tobytes()


def ranks(tensor: int = 2, pipeline: int = 2, data: int = 1, context: int = 1, **given: Any) -> list[FakeRank]:
    """All ranks of a layout; tensor-parallel neighbours are next to each other, then come context ranks, replicas."""
    made: list[FakeRank] = []
    each = MODEL.layers // pipeline
    for stage, replica, stretch, part in product(*map(range, (pipeline, data, context, tensor))):
        at = Coordinates(
            tensor=(part, tensor),
            data=(replica, data),
            context=(stretch, context),
            sequence_parallel=True,
            layers=tuple(range(stage * each, (stage + 1) * each)),
            first_stage=stage == 0,
            last_stage=stage == pipeline - 1,
        )
        placement = trace_pb2.Placement(node="node-a", tensor=part, data=replica, pipeline=stage, context=stretch)
        placement.sizes.CopyFrom(
            trace_pb2.ParallelSizes(
                world=tensor * data * pipeline * context, tensor=tensor, pipeline=pipeline, data=data, context=context
            )
        )
        sites = standard_sites(MODEL, at)
        made.append(FakeRank(len(made), sites, placement, **given))
    return made


def whole_site(name: str) -> Site:
    sites = standard_sites(MODEL, Coordinates(layers=tuple(range(MODEL.layers))))
    return next(site for site in sites if site.name == name)


@asynccontextmanager
async def attached(
    address: str, pods: Sequence[FakeRank], tls: ClientTls = CLEAR_TEXT
) -> AsyncIterator[Sequence[FakeRank]]:
    """The ranks connected, until the block ends."""
    async with open_channel(address, tls) as channel:
        listening = []
        try:
            for rank in pods:
                await rank.attach(channel)
                listening.append(asyncio.create_task(rank.listen()))
            yield pods
        finally:
            for rank in pods:
                if rank.call is not None:
                    rank.call.cancel()
            for task in listening:
                task.cancel()
            await asyncio.gather(*listening, return_exceptions=True)


async def refusal(address: str, rank: FakeRank) -> tuple[grpc.StatusCode, str]:
    """With which status the gateway ends the stream of a rank that it does not take."""
    async with aio.insecure_channel(address) as channel:
        stub = scope_pb2_grpc.ScopeIngestStub(channel)  # type: ignore[no-untyped-call]
        call = stub.Attach(metadata=[("authorization", f"Bearer {rank.token}")])
        await call.write(scope_pb2.ScopeUp(hello=rank.hello()))
        return await call.code(), await call.details()
