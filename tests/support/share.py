"""A drawn part of many tests: of every module some, so that whatever breaks a whole module is seen in any part."""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Callable, Hashable, Sequence
from typing import TypeVar

T = TypeVar("T")


def drawn(items: Sequence[T], share: float, seed: int, group: Callable[[T], Hashable]) -> list[T]:
    """The same for the same seed, in their order; at least one of each group."""
    members = defaultdict[Hashable, list[int]](list)
    for place, item in enumerate(items):
        members[group(item)].append(place)
    chosen = list[int]()
    for name, places in members.items():
        chosen += random.Random(f"{seed}/{name}").sample(places, max(1, round(share * len(places))))
    return [items[place] for place in sorted(chosen)]
