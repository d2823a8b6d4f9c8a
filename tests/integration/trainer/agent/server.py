"""A collector of its own process, as good or bad as a test wants it: `python server.py MODE PORT FILE`.

Modes: ack (acknowledges each message), bundles (and says that it takes them), control (also sends a TraceControl
first), silent (never acknowledges), slow (reads a message each 50 ms), refuse (no token, no stream), lost (as refuse,
but the first answer is lost), lost-twice, picky (refuses the message with seq 2), choosy (refuses those up to seq 12),
muddled (refuses as picky does, and does not say after which: twice, as the first answer may be lost with what was being
sent), stops (cancels each stream).
What it takes goes to FILE, as a trace file.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import IO, Any

import grpc

from megatronapp.core.trace import file as trace_file
from megatronapp.core.trace.stream import REFUSED_AFTER
from megatronapp.v1 import trace_pb2, trace_pb2_grpc

CONTROL = trace_pb2.TraceControl(
    enabled=True, interval=3, continuous_iterations=3, granularity=trace_pb2.GRANULARITY_BASE
)
LOST = {"lost": 1, "lost-twice": 2}
"""Answers."""


class Server(trace_pb2_grpc.TraceIngestServicer):
    def __init__(self, mode: str, file: IO[bytes]) -> None:
        self._mode = mode
        self._file = file
        self._refusals = 0

    async def Stream(  # noqa: N802
        self, requests: AsyncIterator[trace_pb2.TraceMessage], context: Any
    ) -> AsyncIterator[trace_pb2.TraceReply]:
        if self._refusals < LOST.get(self._mode, 0):
            self._refusals += 1
            await context.abort(grpc.StatusCode.INTERNAL, "Internal error from Core")
        if self._mode == "stops":
            await context.abort(grpc.StatusCode.CANCELLED)
        if self._mode in ("refuse", *LOST) and ("authorization", "Bearer secret") not in context.invocation_metadata():
            await context.abort(grpc.StatusCode.UNAUTHENTICATED, "no token")
        if self._mode == "control":
            yield trace_pb2.TraceReply(control=CONTROL)
        last = 0
        async for message in requests:
            if (self._mode, message.seq) == ("picky", 2) or (self._mode == "choosy" and 0 < message.seq <= 12):
                context.set_trailing_metadata(((REFUSED_AFTER, str(last)),))
                await context.abort(grpc.StatusCode.INVALID_ARGUMENT, f"{message.seq} is not liked")
            if (self._mode, message.seq) == ("muddled", 2) and self._refusals < 2:
                self._refusals += 1
                context.set_trailing_metadata(((REFUSED_AFTER, "the first"),))
                await context.abort(grpc.StatusCode.INVALID_ARGUMENT, "2 is not liked")
            inside = [trace_pb2.TraceMessage.FromString(each) for each in message.bundle.messages]
            last = (inside or [message])[-1].seq
            trace_file.write(self._file, message)
            self._file.flush()
            if self._mode == "slow":
                await asyncio.sleep(0.05)
            if self._mode != "silent" and last:
                yield trace_pb2.TraceReply(ack=trace_pb2.Ack(seq=last, takes_bundles=self._mode == "bundles"))


async def serve(mode: str, port: int, path: Path) -> None:
    with path.open("ab") as file:
        server = grpc.aio.server()
        trace_pb2_grpc.add_TraceIngestServicer_to_server(Server(mode, file), server)
        server.add_insecure_port(f"127.0.0.1:{port}")
        await server.start()
        print("ready", flush=True)
        await server.wait_for_termination()


if __name__ == "__main__":
    asyncio.run(serve(sys.argv[1], int(sys.argv[2]), Path(sys.argv[3])))
