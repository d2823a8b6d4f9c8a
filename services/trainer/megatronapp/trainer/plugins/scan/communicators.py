"""The connection's table of communicators: torch process groups under ids that all members agree on."""

from __future__ import annotations

from collections.abc import Callable

import torch.distributed as dist

from megatronapp.core.trace.values import Communicator

KIND_OF_DESCRIPTION = {
    "default_pg": "world",
    "TENSOR_MODEL_PARALLEL_GROUP": "tp",
    "PIPELINE_MODEL_PARALLEL_GROUP": "pp",
    "DATA_PARALLEL_GROUP": "dp",
    "DATA_PARALLEL_GROUP_WITH_CP": "dp_cp",
    "CONTEXT_PARALLEL_GROUP": "cp",
    "MODEL_PARALLEL_GROUP": "mp",
    "EMBEDDING_GROUP": "embd",
    "POSITION_EMBEDDING_GROUP": "pos_embd",
    "TENSOR_AND_DATA_PARALLEL_GROUP": "tp_dp",
    "TENSOR_AND_DATA_PARALLEL_GROUP_WITH_CP": "tp_dp_cp",
    "TENSOR_AND_CONTEXT_PARALLEL_GROUP": "tp_cp",
    "EXPERT_MODEL_PARALLEL_GROUP": "ep",
    "EXPERT_TENSOR_PARALLEL_GROUP": "expert_tp",
    "EXPERT_TENSOR_AND_MODEL_PARALLEL_GROUP": "expert_tp_ep",
    "EXPERT_TENSOR_MODEL_PIPELINE_PARALLEL_GROUP": "expert_tp_ep_pp",
    "EXPERT_DATA_PARALLEL_GROUP": "expert_dp",
}
"""megatron-core describes its groups; what it does not describe is called by its description in lower case."""


def kind_of(description: str) -> str:
    known = KIND_OF_DESCRIPTION.get(description)
    return known or description.lower().removesuffix("_group").replace(":", "_") or "group"


class Communicators:
    """Numbers process groups from 1 in the order of their first use. For the training thread, or autograd's while that
    one waits."""

    def __init__(self, on_new: Callable[[Communicator], None]) -> None:
        """`on_new` hears of each before its first operation."""
        self._on_new = on_new
        self._index: dict[dist.ProcessGroup, int] = {}
        self._table: list[Communicator] = []

    def index(self, group: dist.ProcessGroup | None) -> int:
        """The number of a group, None being the world; 0 for a group of one rank, which has nobody to talk to."""
        known = group or dist.distributed_c10d._get_default_group()
        index = self._index.get(known)
        return index if index is not None else self._add(known)

    def table(self) -> tuple[Communicator, ...]:
        """All so far."""
        return tuple(self._table)

    def _add(self, group: dist.ProcessGroup) -> int:
        if group.size() == 1:
            self._index[group] = 0
            return 0
        kind = kind_of(group.group_desc)
        ranks = tuple(sorted(dist.get_process_group_ranks(group)))
        name = self._unique(f"{kind}:{'-'.join(map(str, ranks))}")
        new = Communicator(index=len(self._table) + 1, id=name, kind=kind, ranks=ranks)
        self._table.append(new)
        self._index[group] = new.index
        self._on_new(new)
        return new.index

    def _unique(self, name: str) -> str:
        """Two groups of one kind over the same ranks are told apart by their order of use, alike on all members."""
        taken = sum(entry.id == name or entry.id.startswith(f"{name}#") for entry in self._table)
        return name if not taken else f"{name}#{taken + 1}"
