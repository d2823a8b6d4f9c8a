"""Of an operation that all have begun and that does not end: whose sends stand, where network ports tell.

By Megatrace's telemetry: the sender at a link that stands still has bytes outstanding; those behind it wait for data,
and those before it for room, with nothing outstanding themselves.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from megatronapp.v1 import trace_pb2

TOLD = 4
"""Ports that a text names."""


def senders(stacks: Mapping[int, trace_pb2.Stack], ranks: Sequence[int]) -> tuple[int, ...]:
    """Those of the ranks whose sends stand; all of them where none, or each one's, do."""
    found = tuple(rank for rank in ranks if any(_standing(stacks.get(rank))))
    return found or tuple(ranks)


def text(stacks: Mapping[int, trace_pb2.Stack], ranks: Sequence[int]) -> str:
    """A sentence for each port, each with a space before it."""
    ports = [(rank, port) for rank in ranks for port in _standing(stacks.get(rank))]
    return "".join(
        f" A send of rank {rank} through {port.port} does not end, in operation {port.operation} or behind it: "
        f"{port.outstanding_bytes} bytes are outstanding."
        for rank, port in ports[:TOLD]
    )


def _standing(stack: trace_pb2.Stack | None) -> Iterator[trace_pb2.PortSends]:
    return (port for port in stack.ports if port.outstanding_bytes) if stack is not None else iter(())
