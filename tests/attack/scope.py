"""MegaScope's half of the gateway, attacked by ranks of another run and by viewers of the innocent's, beside an
innocent rank and viewer.

Messages are handed to the handlers themselves, without sockets between.
"""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import numpy as np
from google.protobuf import json_format
from prometheus_client import CollectorRegistry
from pydantic import SecretStr

from megatronapp.core.auth import Role, StaticTokens
from megatronapp.core.scope.arguments import OPERATIONS
from megatronapp.core.scope.frame import unpack
from megatronapp.core.scope.quantize import decode
from megatronapp.gateway.metrics import ScopeMetrics
from megatronapp.gateway.scope.connection import Connection
from megatronapp.gateway.scope.limits import RefusedError
from megatronapp.gateway.scope.producers import Producer
from megatronapp.gateway.scope.service import Scope
from megatronapp.gateway.scope.tickets import Admission
from megatronapp.gateway.scope.viewers import Viewer
from megatronapp.gateway.settings import GatewaySettings
from megatronapp.gateway.state import JobStore
from megatronapp.v1 import scope_pb2
from tests.attack.inputs import TEXTS, any_value, damaged
from tests.attack.platform import EXPECTED, AbortedError, Call
from tests.attack.session import Harm
from tests.support import hostile
from tests.support.scope_frames import frames
from tests.support.scope_pods import FakeRank, ranks, values_of, whole_site

PODS = "pods-token"
RUN, EVIL_RUN = "run-1", "run-evil"
INNOCENT = "layers[0].resid_post | token(0) | batch(0)"
PARTS = ("layers", *"[]*.|(),:=<> ", "-1", "3", "1e9", "0", "asinh", "p50")
EXPRESSIONS = (
    INNOCENT, "layers[*].attn.probs | head(0)", "logits | topk(5)", "layers[*].mlp.act | pool(chan,5,std)",
    "layers[1].resid_post | stats(mean,p50)", "layers[0].attn.q | pca(2)",
    "layers[0].grad.mlp.out | hist(8)", "layers[*].attn.k | diff(a)",
)  # fmt: skip
CREDIT_FRAMES = 2


class ScopeDoors:
    name = "scope"
    at_once = 8

    def __init__(self) -> None:
        self.seen: Counter[str] = Counter()
        self._step = 0
        self._doors: list[Callable[[random.Random], Awaitable[None]]] = [
            *[self._rank] * 3, *[self._frames] * 3, *[self._viewer] * 3, self._forger,
        ]  # fmt: skip

    async def start(self, folder: Path) -> None:
        self._settings = GatewaySettings(grpc_port=0, quarantine_dir=folder, scope_max_viewers=1000)
        tokens = StaticTokens(SecretStr(PODS))
        self._scope = Scope(self._settings, tokens, JobStore(), ScopeMetrics(CollectorRegistry()))
        self._good = dict(frames())
        pods = ranks()
        self._pods = {pod.rank: (pod, Producer(pod.hello())) for pod in pods}
        self._session = await self._scope._open(pods[0].hello().identity, True)
        for _, producer in self._pods.values():
            self._session.attach(producer)
        self._innocent = Viewer(Admission(Role.VIEWER, "innocent", None))
        self._session.join(self._innocent)
        subscription = scope_pb2.ScopeSubscribe(id=1, expression=INNOCENT, quantizer="f32")
        self._session.subscribe(self._innocent, subscription)
        await self.check()

    async def stop(self) -> None:
        self._session.leave(self._innocent)

    async def execute(self, chance: random.Random) -> None:
        await chance.choice(self._doors)(chance)

    async def check(self) -> None:
        """Its rank's next frame reaches its viewer, as it is."""
        self._step += 1
        await asyncio.sleep(1.5 / self._settings.scope_max_fps)  # frames that follow faster are left out
        pod, producer = self._pods[0]
        pod.demand = await self._demand_of(producer, pod)
        for frame in pod.frames(self._step):
            self._session.take_frame(producer, frame)
        self._innocent.slots.grant(1, CREDIT_FRAMES)
        expected = values_of(whole_site("resid_post"), 0, self._step)[0, 0]
        try:
            async with asyncio.timeout(30):
                while (frame_now := unpack(await self._innocent.slots.take())).step != self._step:
                    self._innocent.slots.grant(1, 1)
        except TimeoutError as error:
            raise Harm("the innocent's frame does not come") from error
        if not np.array_equal(decode(frame_now).array, expected):
            raise Harm("the innocent sees other values than its model has")
        if set(self._session.producers) != {0, 1, 2, 3}:
            raise Harm("a rank of the innocent's run was taken off")
        while not self._innocent._texts.empty():
            self._innocent._texts.get_nowait()
        if self._innocent._behind:
            raise Harm("so much is said to the innocent that it would be disconnected")
        self._scope._sessions.pop(EVIL_RUN, None)

    async def _demand_of(self, producer: Producer, pod: FakeRank) -> scope_pb2.ScopeDemand:
        while producer._waiting:
            message = await producer.next()
            if message is not None and message.HasField("demand"):
                pod.demand = message.demand
        return pod.demand

    async def _rank(self, chance: random.Random) -> None:
        """A rank's stream, each message with some fields of any value."""
        hello = chance.choice(list(self._pods.values()))[0].hello()
        if chance.random() < 0.8:
            hostile.scramble(hello, chance, chance.choice((0.01, 0.05, 0.3)))
        hello.identity.run = EVIL_RUN if chance.random() < 0.9 else RUN
        hello.identity.job = "team/evil"
        hello.identity.attempt = hello.identity.attempt % 9 or 1
        messages = [scope_pb2.ScopeUp(hello=hello).SerializeToString()]
        for _ in range(chance.randrange(4)):
            up = scope_pb2.ScopeUp()
            hostile.scramble(up, chance, chance.choice((0.3, 0.6)))
            data = up.SerializeToString()
            messages.append(damaged(chance, data) if chance.random() < 0.2 else data)
        call = _Call(f"Bearer {PODS}" if chance.random() < 0.97 else chance.choice(TEXTS), messages)
        try:
            await self._scope._ingest._attach(None, call)
        except AbortedError as error:
            if error.code not in EXPECTED:
                raise Harm(f"rank: {error.code.name}: {error}") from error
            self.seen[f"rank {error.code.name}"] += 1
        else:
            self.seen["rank OK"] += 1

    async def _frames(self, chance: random.Random) -> None:
        """A rank of the innocent's run whose frames are damaged: of taps of its own, while somebody looks at them."""
        viewer = Viewer(Admission(Role.VIEWER, "other", None))
        self._session.join(viewer)
        try:
            expression = chance.choice(EXPRESSIONS)
            subscription = scope_pb2.ScopeSubscribe(
                id=1, expression=expression, credits=100, width=chance.choice((0, 3))
            )
            self._session.subscribe(viewer, subscription)
            open_taps = self._session._pictures._demand.taps.values()
            taps = {tap.id for tap in open_taps if tap.key.expression not in INNOCENT}
            for pod, producer in chance.sample(list(self._pods.values()), 2):
                pod.demand = self._session._pictures._demand.of(pod.rank)
                for frame in pod.frames(chance.randrange(1 << 20, 1 << 21)):
                    if frame.tap in taps:
                        data = frame.frame if chance.random() < 0.7 else chance.choice(list(self._good.values()))
                        frame.frame = damaged(chance, data)
                        self._session.take_frame(producer, frame)
                        self.seen["frame"] += 1
        except RefusedError as error:
            self.seen[f"frames {error.code}"] += 1
        finally:
            self._session.leave(viewer)

    async def _viewer(self, chance: random.Random) -> None:
        """A viewer of the innocent's run that says anything, also what is well-formed."""
        texts = ['{"join": {"run": "%s"}}' % (RUN if chance.random() < 0.95 else EVIL_RUN)]
        texts += [self._text(chance) for _ in range(chance.randrange(1, 6))]
        socket = _Socket(texts, chance.choice((1000, 1001, 1006)))
        viewer = Viewer(Admission(chance.choice((Role.VIEWER, Role.VIEWER, Role.OPERATOR)), "evil", None))
        await Connection(socket, viewer, self._scope, self._settings).serve()
        self.seen[f"viewer {socket.closed}"] += 1

    async def _forger(self, chance: random.Random) -> None:
        """A rank of the innocent's run that says events and answers that are none of its."""
        producer = chance.choice(list(self._pods.values()))[1]
        event, ack = scope_pb2.ScopeEvent(), scope_pb2.ScopeAck()
        hostile.scramble(event, chance, 0.4)
        hostile.scramble(ack, chance, 0.5)
        self._session.take_event(producer, event)
        self._session.take_ack(producer, ack)
        self._session.take_in_force(producer, chance.choice((0, 1, 2**64 - 1)))
        self.seen["event"] += 1

    def _text(self, chance: random.Random) -> str:
        kind = chance.randrange(4)
        if kind == 0:
            return str(any_value(chance))
        message = scope_pb2.ScopeClientMessage()
        if kind == 1:
            hostile.scramble(message, chance, 0.5)
        else:
            message.subscribe.id = chance.choice((0, 1, 2, 2**32 - 1))
            message.subscribe.expression = self._expression(chance)
            message.subscribe.width = chance.choice((0, 1, 7, 2**32 - 1))
            message.subscribe.quantizer = chance.choice(("", "f32", "asinh16", "exec", "x" * 9999))
            message.subscribe.max_fps = chance.choice((0.0, -1.0, 1e300, float("nan")))
        return json_format.MessageToJson(message, indent=None)

    def _expression(self, chance: random.Random) -> str:
        good = chance.choice((*EXPRESSIONS, "layers[0].resid_post | logitlens(3)"))
        kind = chance.randrange(4)
        if kind == 0:
            return "".join(chance.choices((*PARTS, *OPERATIONS), k=chance.randrange(30)))
        if kind == 1:
            return damaged(chance, good.encode()).decode(errors="replace")
        if kind == 2:
            steps = [OPERATIONS[chance.choice(list(OPERATIONS))].written.split(" or ")[0] for _ in range(3)]
            return " | ".join((good.split(" |")[0], *(step.split("), ")[0].rstrip(")") + ")" for step in steps)))
        return good


class _Call(Call):
    async def write(self, reply: Any) -> None:
        await asyncio.sleep(0)


class _Socket:
    """What a Connection uses of a WebSocket."""

    def __init__(self, texts: list[str], code: int) -> None:
        self._texts = texts
        self._code = code
        self.closed = 0

    async def receive(self) -> dict[str, Any]:
        await asyncio.sleep(0)
        if self._texts:
            return {"type": "websocket.receive", "text": self._texts.pop(0)}
        return {"type": "websocket.disconnect", "code": self._code}

    async def send(self, message: dict[str, Any]) -> None:
        await asyncio.sleep(0)

    async def close(self, code: int, reason: str) -> None:
        self.closed = code
