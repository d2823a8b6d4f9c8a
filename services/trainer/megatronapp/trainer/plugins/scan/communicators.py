"""The connection's table of communicators: torch process groups under ids that all members agree on."""

from __future__ import annotations

import threading
from collections.abc import Sequence

import torch.distributed as dist

from megatronapp.v1 import trace_pb2

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
    """Numbers process groups from 1 in the order of their first use. Written by the training thread alone."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._index: dict[dist.ProcessGroup, int] = {}
        self._table: list[trace_pb2.Communicator] = []

    def index(self, group: dist.ProcessGroup | None) -> int:
        """The number of a group, None being the world; 0 for a group of one rank, which has nobody to talk to."""
        known = group or dist.distributed_c10d._get_default_group()
        index = self._index.get(known)
        return index if index is not None else self._add(known)

    def since(self, count: int) -> Sequence[trace_pb2.Communicator]:
        """All but the first `count`."""
        with self._lock:
            return self._table[count:]

    def id(self, index: int) -> str:
        return self._table[index - 1].id

    def _add(self, group: dist.ProcessGroup) -> int:
        if group.size() == 1:
            self._index[group] = 0
            return 0
        kind = kind_of(group.group_desc)
        ranks = sorted(dist.get_process_group_ranks(group))
        with self._lock:
            name = self._unique(f"{kind}:{'-'.join(map(str, ranks))}")
            index = len(self._table) + 1
            self._table.append(trace_pb2.Communicator(index=index, id=name, kind=kind, ranks=ranks))
        self._index[group] = index
        return index

    def _unique(self, name: str) -> str:
        """Two groups of one kind over the same ranks are told apart by their order of use, alike on all members."""
        taken = sum(entry.id == name or entry.id.startswith(f"{name}#") for entry in self._table)
        return name if not taken else f"{name}#{taken + 1}"
