"""A collector in the test's own process."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import grpc

from megatronapp.v1 import trace_pb2_grpc


@contextmanager
def served(servicer: trace_pb2_grpc.TraceIngestServicer | None) -> Iterator[tuple[grpc.Server, str]]:
    """And its address. None: it is of a version that knows no such call."""
    server = grpc.server(ThreadPoolExecutor(4))
    if servicer is not None:
        trace_pb2_grpc.add_TraceIngestServicer_to_server(servicer, server)
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    try:
        yield server, f"127.0.0.1:{port}"
    finally:
        server.stop(None)
