"""Messages of a rank that means harm: well-formed, with any value in any field."""

from __future__ import annotations

import random
from typing import Any

from google.protobuf.descriptor import FieldDescriptor

from megatronapp.v1 import trace_pb2

F = FieldDescriptor
RANGES = {
    F.CPPTYPE_INT32: (-(2**31), 2**31 - 1),
    F.CPPTYPE_UINT32: (0, 2**32 - 1),
    F.CPPTYPE_INT64: (-(2**63), 2**63 - 1),
    F.CPPTYPE_UINT64: (0, 2**64 - 1),
}
FLOATS = (0.0, -1.0, 1e300, -1e300, float("inf"), float("nan"))
TEXTS = ("", "step", "dp:0-1", "node\n\x00", "x" * 5000, "é\u2028", "../..", "<!channel>")
MOST = 3
"""Entries of a repeated field."""


def scramble(message: Any, chance: random.Random, share: float = 0.5) -> None:
    """Give this share of the fields, at all depths, a value of any kind."""
    for field in message.DESCRIPTOR.fields:
        if chance.random() > share:
            continue
        if field.is_repeated:
            _scramble_list(getattr(message, field.name), field, chance, share)
        elif field.message_type is not None:
            inner = getattr(message, field.name)
            inner.SetInParent()
            scramble(inner, chance, share)
        else:
            setattr(message, field.name, _value(field, chance))


def _scramble_list(values: Any, field: Any, chance: random.Random, share: float) -> None:
    for _ in range(chance.randint(0, MOST)):
        if field.message_type is not None:
            scramble(values.add(), chance, share)
        else:
            values.append(_value(field, chance))


def _value(field: Any, chance: random.Random) -> Any:
    kind = field.cpp_type
    if kind == F.CPPTYPE_BOOL:
        return chance.random() < 0.5
    if kind in {F.CPPTYPE_DOUBLE, F.CPPTYPE_FLOAT}:
        return chance.choice(FLOATS)
    if kind == F.CPPTYPE_ENUM:
        return chance.choice([0, 1, 2, 7, 2**31 - 1, -(2**31)])
    if kind == F.CPPTYPE_STRING:
        return chance.choice(TEXTS) if field.type != F.TYPE_BYTES else chance.randbytes(8 * chance.randint(0, MOST))
    low, high = RANGES[kind]
    return chance.choice([low, high, 0, 1, 2, 31, chance.randint(low, high)])


def message(chance: random.Random, *, run: str, job: str, attempt: int = 1) -> trace_pb2.RankMessage:
    """A message whose sender is authenticated: only run, job and attempt are as they say."""
    result = trace_pb2.RankMessage()
    scramble(result, chance, chance.choice([0.1, 0.3, 0.6]))
    kind = chance.choice(["hello", "summary", "heartbeat", None])
    if kind is not None and result.message.WhichOneof("body") != kind:
        result.message.Clear()
        inner = getattr(result.message, kind)
        inner.SetInParent()
        scramble(inner, chance, chance.choice([0.05, 0.2, 0.6]))
    if chance.random() < 0.7:
        _as_it_may_be(result, chance)
    identity = result.identity
    identity.run, identity.job, identity.attempt = run, job, chance.choice([attempt, identity.attempt])
    return result


def _as_it_may_be(result: trace_pb2.RankMessage, chance: random.Random) -> None:
    """What would be refused at once, mended, so that the rest is looked at."""
    result.identity.rank = chance.choice([0, 1, 3])
    result.identity.incarnation = 1
    result.received_unix_ns = 1_790_000_000_000_000_000
    result.clock_offset_ns, result.clock_error_ns = 0, -1
    body = result.message.WhichOneof("body")
    result.message.seq = 0 if body == "hello" else chance.randint(1, 9)
    if body == "hello":
        result.message.hello.ClearField("identity")
