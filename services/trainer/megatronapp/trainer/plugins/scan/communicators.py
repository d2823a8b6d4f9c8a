"""The connection's table of communicators: torch process groups under ids that all members agree on."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch.distributed as dist

from megatronapp.core.trace.group_kinds import GroupKind
from megatronapp.core.trace.values import Communicator

KIND_OF_DESCRIPTION = {
    "default_pg": GroupKind.WORLD,
    "TENSOR_MODEL_PARALLEL_GROUP": GroupKind.TP,
    "PIPELINE_MODEL_PARALLEL_GROUP": GroupKind.PP,
    "DATA_PARALLEL_GROUP": GroupKind.DP,
    "DATA_PARALLEL_GROUP_GLOO": GroupKind.DP_GLOO,
    "DATA_PARALLEL_GROUP_WITH_CP": GroupKind.DP_CP,
    "DATA_PARALLEL_GROUP_WITH_CP_AG": GroupKind.DP_CP_AG,
    "DATA_PARALLEL_GROUP_WITH_CP_GLOO": GroupKind.DP_CP_GLOO,
    "INTRA_PARTIAL_DATA_PARALLEL_GROUP_WITH_CP": GroupKind.INTRA_DP_CP,
    "INTRA_PARTIAL_DATA_PARALLEL_GROUP_WITH_CP_GLOO": GroupKind.INTRA_DP_CP_GLOO,
    "INTRA_DISTRIBUTED_OPTIMIZER_INSTANCE_GROUP": GroupKind.INTRA_DIST_OPT,
    "CONTEXT_PARALLEL_GROUP": GroupKind.CP,
    "MODEL_PARALLEL_GROUP": GroupKind.MP,
    "EMBEDDING_GROUP": GroupKind.EMBD,
    "POSITION_EMBEDDING_GROUP": GroupKind.POS_EMBD,
    "TENSOR_AND_DATA_PARALLEL_GROUP": GroupKind.TP_DP,
    "TENSOR_AND_DATA_PARALLEL_GROUP_WITH_CP": GroupKind.TP_DP_CP,
    "TENSOR_AND_CONTEXT_PARALLEL_GROUP": GroupKind.TP_CP,
    "EXPERT_MODEL_PARALLEL_GROUP": GroupKind.EP,
    "EXPERT_TENSOR_PARALLEL_GROUP": GroupKind.EXPERT_TP,
    "EXPERT_TENSOR_AND_MODEL_PARALLEL_GROUP": GroupKind.EXPERT_TP_EP,
    "EXPERT_TENSOR_MODEL_PIPELINE_PARALLEL_GROUP": GroupKind.EXPERT_TP_EP_PP,
    "EXPERT_DATA_PARALLEL_GROUP": GroupKind.EXPERT_DP,
    "EXPERT_DATA_PARALLEL_GROUP_GLOO": GroupKind.EXPERT_DP_GLOO,
}
"""megatron-core describes its groups; what it does not describe is called by its description in lower case."""


def kind_of(description: str) -> str:
    known = KIND_OF_DESCRIPTION.get(description)
    return known or description.lower().removesuffix("_group").replace(":", "_") or "group"


class Communicators:
    """Numbers process groups from 1 in the order of their first use. For the training thread, or autograd's while that
    one waits."""

    def __init__(self, on_new: Callable[[Communicator], None], world: Sequence[int]) -> None:
        """`on_new` hears of each before its first operation. `world`: torchrun's rank of each of the world's."""
        self._on_new = on_new
        self._world = world
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
        ranks = tuple(sorted(self._world[rank] for rank in dist.get_process_group_ranks(group)))
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
