"""Who is not heard of, and what that says: of a process that has ended, of a rank while others of its node speak, or of
a whole node. Silence of all ranks is the collector's, and says nothing of any. Pure.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from enum import StrEnum


class Silence(StrEnum):
    ENDED = "ended"
    """Its stream broke off: the process, or its agent, is gone."""
    RANK = "rank"
    """Nothing is heard of it, and others of its node are."""
    NODE = "node"
    """Nothing is heard of any rank of its node."""


def silences(
    silent: Collection[int], lost: Collection[int], nodes: Mapping[int, str], living: Collection[int]
) -> dict[int, Silence]:
    """By rank. silent: who has not been heard of lately, lost: whose stream broke off. nodes: of each rank, "": not
    known. living: all that have not said goodbye. Empty where nobody is heard of."""
    unheard = set(silent) | set(lost)
    if unheard >= set(living):
        return {}
    speaking = {nodes.get(rank, "") for rank in set(living) - unheard}
    of_node: dict[str, int] = {}
    for rank in unheard:
        of_node[nodes.get(rank, "")] = of_node.get(nodes.get(rank, ""), 0) + 1
    return {rank: _silence(rank, lost, nodes.get(rank, ""), speaking, of_node) for rank in unheard}


def _silence(
    rank: int, lost: Collection[int], node: str, speaking: Collection[str], of_node: Mapping[str, int]
) -> Silence:
    """One rank on a node of its own is told as a rank: nothing else there could speak."""
    whole_node = bool(node) and node not in speaking and of_node[node] > 1
    if whole_node:
        return Silence.NODE
    return Silence.ENDED if rank in lost else Silence.RANK
