"""The flags that MegatronApp's pipeline transport had, in this engine's words.

--workload    elements (two bytes each, as there) that are copied at a time; here the largest piece of the lanes
--num-gpus    GPUs per node; here it must agree with the ranks that the launcher starts on a node
--multi-node  ranks are on several nodes; here found out by itself, so without it a second node is an error
--node-ips    one address per rank; here only where the one found by itself is not reachable
"""

from __future__ import annotations

import ipaddress
from collections.abc import Sequence
from typing import Any

BYTES_PER_ELEMENT = 2
MIN_WORKLOAD = 2048


def settings(
    *,
    rank: int,
    world_size: int,
    ranks_per_node: int,
    workload: int | None = None,
    num_gpus: int | None = None,
    multi_node: bool = False,
    node_ips: Sequence[str] = (),
) -> dict[str, Any]:
    """Keywords for `Config`. Raises ValueError for flags that contradict each other or the launch."""
    if num_gpus is not None and num_gpus != ranks_per_node:
        raise ValueError(f"--num-gpus {num_gpus}, but the launcher starts {ranks_per_node} ranks on this node")
    if num_gpus is not None and not multi_node and num_gpus < world_size:
        raise ValueError(f"--num-gpus {num_gpus} of {world_size} ranks are on one node: add --multi-node")
    found: dict[str, Any] = {}
    if node_ips:
        if len(node_ips) != world_size:
            raise ValueError(f"--node-ips has {len(node_ips)} addresses: it needs one for each of {world_size} ranks")
        found["address"] = _address(node_ips[rank])
    if workload is not None:
        if workload < MIN_WORKLOAD:
            raise ValueError(f"--workload {workload} is too small: the least is {MIN_WORKLOAD} elements")
        found["chunk_bytes"] = workload * BYTES_PER_ELEMENT
    return found


def _address(given: str) -> str:
    try:
        return str(ipaddress.ip_address(given))
    except ValueError as error:
        raise ValueError(f"--node-ips {given} is no IP address: give one for each rank, as 10.0.0.1") from error
