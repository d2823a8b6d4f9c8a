"""A collector that answers a node's agent with anything: replies, refusals, endings. The agent goes on, hands a rank no
control that can't be, and delivers what it has as soon as the collector comes to its senses.
"""

from __future__ import annotations

import asyncio
import random
import struct
import time
from collections import Counter, deque
from pathlib import Path
from typing import Any

import grpc
from grpc import aio

from megatronapp.core.trace import limits
from megatronapp.core.trace.stream import REFUSED_AFTER
from megatronapp.core.trace.values import Granularity, TraceControl
from megatronapp.trainer.agent import stream
from megatronapp.trainer.agent.access import Access
from megatronapp.trainer.agent.control import ControlRelay
from megatronapp.trainer.agent.outbox import Outgoing
from megatronapp.trainer.agent.stream import CollectorStream, StreamLoop
from megatronapp.v1 import trace_pb2
from tests.attack.inputs import TEXTS, damaged
from tests.attack.session import Harm
from tests.support import hostile

SETTLE_SECONDS = 60.0
WAITS, SHORT_SECONDS = ("FIRST_BACKOFF_SECONDS", "LAST_BACKOFF_SECONDS", "REFUSAL_SECONDS"), 0.002
"""What spares a collector that is away, and makes an attack long."""
CODES = [code for code in grpc.StatusCode if code is not grpc.StatusCode.OK]


class _State:
    step = 1


class _Segment:
    """What a relay writes of control for the rank: numbers of fixed width."""

    state, serial = _State(), 7

    def write_control(self, enabled: bool, interval: int, iterations: int, granularity: int, number: int) -> None:
        struct.pack("<?IIIQ", enabled, interval, iterations, granularity, number)
        if not (1 <= interval <= limits.MAX_TRACE_INTERVAL and 1 <= iterations <= limits.MAX_TRACE_INTERVAL):
            raise Harm(f"a rank was told to trace {iterations} of {interval} steps")


class Agent:
    name = "agent"
    at_once = 8

    def __init__(self) -> None:
        self.seen: Counter[str] = Counter()
        self._says: deque[random.Random] = deque()
        """A hostile connection each. The collector lives in the loop of the agent's streams: grpc.aio's callbacks go
        astray where two loops of one process use it and one of them ends."""
        self._number = 0

    async def start(self, folder: Path) -> None:
        self._waits = {name: getattr(stream, name) for name in WAITS}
        for name in WAITS:
            setattr(stream, name, SHORT_SECONDS)
        self._loop = StreamLoop()
        await asyncio.wrap_future(self._loop.start(self._listen()))
        segment: Any = _Segment()
        usual = TraceControl(enabled=True, interval=10, continuous_iterations=1, granularity=Granularity.BASE)
        self._relay = ControlRelay(segment, usual)
        hello = trace_pb2.TraceMessage(hello=trace_pb2.Hello())
        self._stream = CollectorStream(
            f"127.0.0.1:{self._port}", lambda: hello, self._relay.ask, self._loop, Access(), ack_timeout_seconds=2.0
        )
        await self.check()

    async def stop(self) -> None:
        await asyncio.to_thread(self._stream.close, 1.0)
        await asyncio.wrap_future(self._loop.start(self._server.stop(0)))
        self._loop.close()
        for name, seconds in self._waits.items():
            setattr(stream, name, seconds)

    async def _listen(self) -> None:
        self._server = aio.server()
        handler = grpc.stream_stream_rpc_method_handler(self._serve)
        service = trace_pb2.DESCRIPTOR.services_by_name["TraceIngest"].full_name
        self._server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(service, {"Stream": handler}),))
        self._port = self._server.add_insecure_port("127.0.0.1:0")
        await self._server.start()

    async def execute(self, chance: random.Random) -> None:
        """One connection's worth of answers; something always waits to be sent, so that there is a connection."""
        self._put()
        self._says.append(chance)
        until = time.monotonic() + SETTLE_SECONDS
        while self._says and time.monotonic() < until:
            self._relay.relay()
            await asyncio.sleep(0.002)
        if self._says:
            raise Harm("the agent does not connect any more")

    async def check(self) -> None:
        """All that waits, the newest, too, is taken by a collector that acknowledges it."""
        self._put()
        until = time.monotonic() + SETTLE_SECONDS
        while len(self._stream._buffer):
            if self._stream._running.done() or time.monotonic() > until:
                raise Harm("what waits at the agent is not delivered")
            await asyncio.sleep(0.005)
        self._relay.relay()

    def _put(self) -> None:
        self._number += 1
        beat = trace_pb2.TraceMessage(seq=self._number, heartbeat=trace_pb2.Heartbeat(step=1))
        self._stream.put(Outgoing.of(beat))

    async def _serve(self, requests: Any, context: Any) -> None:
        """A hostile connection while there is one to be made, else a good one."""
        if not self._says:
            await self._acknowledge(context)
            return
        chance = self._says.popleft()
        for _ in range(chance.randrange(5)):
            await context.write(_reply(chance))
        kind = chance.random()
        self.seen["hostile connections"] += 1
        if kind < 0.7:
            await context.abort(chance.choice(CODES), _text(chance), _trailing(chance))
        elif kind < 0.9:
            context.set_trailing_metadata(_trailing(chance))
        else:
            raise RuntimeError("the collector has broken down")

    async def _acknowledge(self, context: Any) -> None:
        """Until somebody wants a hostile connection."""
        while (message := await context.read()) is not aio.EOF:  # type: ignore[attr-defined]  # the stubs leave it out
            sent = trace_pb2.TraceMessage.FromString(message)
            numbers = [trace_pb2.TraceMessage.FromString(each).seq for each in sent.bundle.messages]
            reply = trace_pb2.TraceReply(ack=trace_pb2.Ack(seq=max(numbers, default=sent.seq), takes_bundles=True))
            await context.write(reply.SerializeToString())
            if self._says:
                return


def _reply(chance: random.Random) -> bytes:
    reply = trace_pb2.TraceReply()
    hostile.scramble(reply, chance, chance.choice((0.3, 0.9)))
    data: bytes = reply.SerializeToString()
    return damaged(chance, data) if chance.random() < 0.2 else data


def _trailing(chance: random.Random) -> tuple[tuple[str, str], ...]:
    return ((REFUSED_AFTER, _text(chance)),) if chance.random() < 0.6 else ()


def _text(chance: random.Random) -> str:
    """What HTTP/2 lets through."""
    text = chance.choice((*TEXTS, str(chance.randrange(100)), str(2**63), "-5"))
    return "".join(letter for letter in text if " " <= letter < "\x7f")[:1_000].strip()
