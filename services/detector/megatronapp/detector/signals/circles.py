"""Circles of ranks that wait for one another: who is in one, and who is in all of them.

ahead: of each rank those that it waits for.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from graphlib import CycleError, TopologicalSorter

MOST = 16
"""Each costs a walk over all ranks."""


def circles(ahead: Mapping[int, set[int]]) -> list[set[int]]:
    """The largest sets of ranks that all wait for one another, along any number of edges."""
    whole = list[set[int]]()
    while found := _one_circle(ahead):
        rank = min(found)
        behind: dict[int, set[int]] = {}
        for waiter, waited in ahead.items():
            for other in waited:
                behind.setdefault(other, set()).add(waiter)
        circle = reached(rank, ahead) & reached(rank, behind)
        whole.append(circle)
        ahead = {waiter: waited for waiter, waited in ahead.items() if waiter not in circle}
    return whole


def in_all_circles(ahead: Mapping[int, set[int]]) -> frozenset[int]:
    """The ranks without each of whom nobody would wait in a circle; none where they are more than MOST."""
    found = set[int]()
    possible = _one_circle(ahead)
    while possible and len(found) <= MOST:
        rank = min(possible)
        without = _one_circle({waiter: waited - {rank} for waiter, waited in ahead.items() if waiter != rank})
        if not without:
            found.add(rank)
        possible = (possible & without if without else possible) - {rank}
    return frozenset(found if len(found) <= MOST else ())


def _one_circle(ahead: Mapping[int, Iterable[int]]) -> frozenset[int]:
    """The ranks of any; empty where there is none."""
    try:
        TopologicalSorter(ahead).prepare()
    except CycleError as error:
        return frozenset(error.args[1])
    return frozenset()


def reached(start: int, graph: Mapping[int, set[int]]) -> set[int]:
    """Along the edges from a rank; itself where they lead back to it."""
    seen, todo = set[int](), [start]
    while todo:
        new = graph.get(todo.pop(), set()) - seen
        seen |= new
        todo += new
    return seen
