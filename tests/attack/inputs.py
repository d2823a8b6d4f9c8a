"""Values that mean harm: bytes, JSON and texts, made anew or out of good ones."""

from __future__ import annotations

import copy
import json
import random
from collections.abc import Sequence
from typing import Any

DIGITS = "9" * 5_000
TEXTS = (
    "", " ", "0", "-1", "1e400", "NaN", "9" * 400, DIGITS, "../..", "\x00", "a" * 5_000, "é\u2028\u202e", "%00",
    "<!channel>", "null", "{", "[" * 50, "\ud800",
    "2026-13-45", "a/b", "🔥" * 100, "\r\nX: y", "true", "${jndi:x}", "{{7*7}}",
)  # fmt: skip
NUMBERS: tuple[Any, ...] = (
    0, 1, -1, 2, 7, 31, 2**31 - 1, 2**31, -(2**31), 2**32, 2**53, 2**63 - 1, 2**63, -(2**63), 2**64, 10**30, 10**400,
    0.0, -0.0, 0.5, 1e308, -1e308, 5e-324, float("inf"), float("-inf"), float("nan"),
)  # fmt: skip
MAX_REPEATED_WITHIN = 2
"""So many lists, one within another, have items repeated: three hundred of them would make terabytes."""
OTHERS: tuple[Any, ...] = (None, True, False, [], {}, [None], {"": None}, [[]], [{}])


def any_value(chance: random.Random, depth: int = 2) -> Any:
    """Any JSON, and numbers that JSON can't have."""
    kind = chance.randrange(6 if depth else 4)
    if kind == 0:
        return chance.choice(TEXTS)
    if kind == 1:
        return chance.choice(NUMBERS)
    if kind == 2:
        return chance.choice(OTHERS)
    if kind == 3:
        return deep(chance.choice((40, 300)), chance.random() < 0.5) if chance.random() < 0.05 else "x"
    if kind == 4:
        return [any_value(chance, depth - 1) for _ in range(chance.randrange(4))]
    return {chance.choice(TEXTS): any_value(chance, depth - 1) for _ in range(chance.randrange(4))}


def deep(levels: int, lists: bool = True) -> Any:
    value: Any = 1
    for _ in range(levels):
        value = [value] if lists else {"a": value}
    return value


def mutated(chance: random.Random, value: Any, share: float = 0.1) -> Any:
    """The same value with this share of what is in it left out, repeated, swapped or replaced."""
    return _mutated(chance, copy.deepcopy(value), share, MAX_REPEATED_WITHIN)


def _mutated(chance: random.Random, value: Any, share: float, repeats: int) -> Any:
    if chance.random() < share / 2:
        return any_value(chance)
    if isinstance(value, dict):
        return _mutated_dict(chance, value, share, repeats)
    if isinstance(value, list | tuple):
        return _mutated_list(chance, value, share, repeats)
    if isinstance(value, bool) or value is None or chance.random() > share:
        return value
    if isinstance(value, int | float):
        return chance.choice((chance.choice(NUMBERS), value + 1, -value, str(value)))
    if isinstance(value, str):
        return chance.choice((chance.choice(TEXTS), value + chance.choice(TEXTS), value[:-1]))
    return value


def _mutated_list(chance: random.Random, value: Sequence[Any], share: float, repeats: int) -> list[Any]:
    repeated = repeats > 0 and chance.random() < share
    items = [_mutated(chance, item, share, repeats - repeated) for item in value if chance.random() > share / 4]
    if items and repeated:
        items += chance.choices(items, k=chance.choice((1, 3, 30)))
    if chance.random() < share:
        chance.shuffle(items)
    return items


def _mutated_dict(chance: random.Random, value: dict[Any, Any], share: float, repeats: int) -> dict[Any, Any]:
    found = {}
    for key, item in value.items():
        if chance.random() < share / 4:
            continue
        name = chance.choice(TEXTS) if chance.random() < share / 8 else key
        found[name] = _mutated(chance, item, share, repeats)
    if chance.random() < share:
        found[chance.choice(TEXTS)] = any_value(chance)
    return found


def as_json(value: Any) -> bytes:
    """With what JSON has no words for: NaN, numbers of any length, half characters."""
    return json.dumps(value).replace("Infinity", "1e400").encode()


def damaged(chance: random.Random, data: bytes) -> bytes:
    """Bytes flipped, cut, doubled or put in; now and then none of them as it was."""
    found = bytearray(data)
    for _ in range(chance.choice((1, 1, 2, 5, 20))):
        kind = chance.randrange(6)
        at = chance.randrange(len(found) + 1)
        if kind == 0 and found:
            found[min(at, len(found) - 1)] ^= 1 << chance.randrange(8)
        elif kind == 1:
            del found[at : at + chance.choice((1, 2, 8, 100))]
        elif kind == 2:
            found[at:at] = chance.randbytes(chance.choice((1, 4, 9, 64)))
        elif kind == 3:
            begin = chance.randrange(len(found) + 1)
            found[at:at] = found[begin : begin + chance.choice((4, 16, 256))]
        elif kind == 4:
            found[at : at + 8] = chance.choice((b"\xff" * 8, b"\x00" * 8, b"\x80" * 8, b"\xff\xff\xff\xff\x07"))
        elif chance.random() < 0.2:
            del found[at:]
    return bytes(found) if chance.random() > 0.02 else chance.randbytes(chance.choice((0, 1, 16, 1_000)))
