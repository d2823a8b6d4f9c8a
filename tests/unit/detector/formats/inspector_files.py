"""Dumps as NCCL Inspector writes them, of jobs whose ranks come to collectives at given times."""

from __future__ import annotations

import json
import random
from collections.abc import Mapping
from pathlib import Path

Groups = Mapping[str, tuple[int, ...]]


def write_dumps(folder: Path, groups: Groups, slow: Mapping[int, float], operations: int = 50, seed: int = 0) -> None:
    """slow: by how many microseconds a rank comes late. Each step calls every group, in order; who waited in one is as
    late to the next as those it waited for."""
    chance = random.Random(seed)
    world = 1 + max(rank for ranks in groups.values() for rank in ranks)
    lines: dict[int, list[str]] = {rank: [] for rank in range(world)}
    for number in range(operations):
        at = {rank: slow.get(rank, 0.0) + chance.uniform(0, 20) for rank in range(world)}
        for group, ranks in groups.items():
            end = max(at[rank] for rank in ranks) + 60
            for place, rank in enumerate(ranks):
                header = {"id": group, "comm_name": "unknown", "rank": place, "n_ranks": len(ranks), "nnodes": 1}
                stamp = 1_700_000_000_000_000 + number * 10_000
                metadata = {"hostname": "h", "pid": 100 + rank, "dump_timestamp_us": stamp}
                performance = {
                    "coll": "AllReduce", "coll_sn": number, "coll_msg_size_bytes": 1 << 22,
                    "coll_exec_time_us": round(end - at[rank]), "coll_busbw_gbs": 100.0,
                }  # fmt: skip
                lines[rank].append(json.dumps({"header": header, "metadata": metadata, "coll_perf": performance}))
            at |= dict.fromkeys(ranks, end)
    for rank, own in lines.items():
        stats = json.dumps({"header": {"n_ranks": 2}, "metadata": metadata, "dump_stats": {"coll_records": 1}})
        (folder / f"h-pid{100 + rank}.log").write_text("\n".join([*own, stats]) + "\n")
