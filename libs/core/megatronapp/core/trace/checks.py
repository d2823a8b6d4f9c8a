"""What messages have in common, and how it is checked: their parts, texts, and the ranges of their numbers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from megatronapp.core.trace import limits
from megatronapp.core.trace.ranges import ImplausibleError, Range, Ranges
from megatronapp.v1 import trace_pb2


def check_communicators(communicators: Sequence[trace_pb2.Communicator]) -> None:
    if len(communicators) > limits.MAX_COMMUNICATORS:
        raise ImplausibleError(
            "communicators", f"{len(communicators)} communicators; at most {limits.MAX_COMMUNICATORS}"
        )
    for communicator in communicators:
        ranks, index = communicator.ranks, communicator.index
        if not 1 <= index <= limits.MAX_COMMUNICATORS:
            raise ImplausibleError(
                "communicators", f"communicator index {index}; it counts from 1 to {limits.MAX_COMMUNICATORS}"
            )
        if len(ranks) > limits.MAX_WORLD or (len(ranks) and max(ranks) >= limits.MAX_WORLD):
            raise ImplausibleError("communicators", f"a communicator of ranks above {limits.MAX_WORLD - 1}")
        check_texts("communicator", [communicator.id], limits.MAX_COMMUNICATOR_ID + limits.RANK_CHARACTERS * len(ranks))
        check_texts("communicator kind", [communicator.kind])


def check_phase(phase: int) -> None:
    if not 0 <= phase <= limits.MAX_PHASE:
        raise ImplausibleError("phases", f"phase {phase}; phases are numbered from 0 to {limits.MAX_PHASE}")


def check_parts(message: Any, parts: Mapping[str, Ranges]) -> None:
    """Those of a message's parts that it has."""
    for name, ranges in parts.items():
        if message.HasField(name):
            ranges.check(getattr(message, name))


def check_count(what: str, count: int, most: int) -> None:
    if count > most:
        raise ImplausibleError("rows", f"{count} {what}; at most {most} are accepted")


def check_texts(what: str, texts: Sequence[str], longest: int = limits.MAX_LABEL) -> None:
    joined = "".join(texts)
    if len(joined) > longest and max(map(len, texts)) > longest:
        raise ImplausibleError("text", f"{what} of more than {longest} characters")
    if not joined.isprintable():
        raise ImplausibleError("text", f"{what} with characters that can't be printed")


def times(*fields: str) -> list[Range]:
    return [(field, -limits.MAX_TIME_NS, limits.MAX_TIME_NS) for field in fields]


def up_to(high: int, *fields: str) -> list[Range]:
    return [(field, 0, high) for field in fields]


OPEN_ENUM = 31
"""A newer sender may name values that are not known here."""

CONTROL = Ranges(
    "trace control",
    *up_to(limits.MAX_TRACE_INTERVAL, "interval", "continuous_iterations"),
    *up_to(OPEN_ENUM, "granularity"),
)
MEMORY = Ranges(
    "memory",
    *up_to(limits.MAX_COUNT, "allocated_bytes", "reserved_bytes", "peak_allocated_bytes", "device_bytes", "host_bytes"),
)
