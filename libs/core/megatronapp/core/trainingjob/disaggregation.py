"""What MegaFBD asks of the rest of a spec."""

from __future__ import annotations

from typing import Protocol

from megatronapp.core.trainingjob.plugins import FbdPlugin, Plugins
from megatronapp.core.trainingjob.sizing import Elastic, Parallelism, Scheduling


class Sized(Protocol):
    """Of a spec, which calls this, what MegaFBD looks at."""

    @property
    def nodes(self) -> int: ...
    @property
    def proc_per_node(self) -> int: ...
    @property
    def world_size(self) -> int: ...
    @property
    def parallelism(self) -> Parallelism: ...
    @property
    def plugins(self) -> Plugins: ...
    @property
    def scheduling(self) -> Scheduling: ...
    @property
    def elastic(self) -> Elastic | None: ...
    @property
    def backend(self) -> str: ...


def replica_ranks(spec: Sized) -> tuple[int, int]:
    """Forward and backward ranks of a replica."""
    sizes = spec.parallelism
    forward = spec.plugins.fbd.forward_ranks(sizes.tensor, sizes.pipeline) * sizes.context
    return forward, sizes.model_ranks


def forward_nodes(spec: Sized) -> int:
    """Of the job's nodes, those of forward ranks alone."""
    if not spec.plugins.fbd.apart:
        return 0
    forward, backward = replica_ranks(spec)
    return spec.nodes * forward // (forward + backward)


def check(spec: Sized) -> None:
    """Raises ValueError for sizes that can't be disaggregated: those that the trainer refuses."""
    sizes, fbd = spec.parallelism, spec.plugins.fbd
    for other in ("dpp", "scope"):
        if other in spec.plugins.enabled:
            raise ValueError(f"plugins.fbd can't be used with plugins.{other}: turn one of them off")
    if sizes.pipeline < 2 and fbd.mode in (None, "Input"):
        raise ValueError(
            "plugins.fbd needs pipeline of at least 2, as the last stage runs its own forward, or mode Linears or "
            "Layers"
        )
    if sizes.expert > 1 and fbd.mode not in (None, "Input"):
        raise ValueError(f"plugins.fbd.mode {fbd.mode} can't run experts: leave mode out, or parallelism.expert")
    if (tensor := fbd.forward_tensor_ranks(sizes.tensor)) != sizes.tensor:
        _check_tensor(sizes, fbd, tensor)
    forward, backward = replica_ranks(spec)
    replicas, rest = divmod(spec.world_size, forward + backward)
    if rest:
        raise ValueError(
            f"plugins.fbd needs nodes x procPerNode = {spec.world_size} to be a multiple of {forward} forward and "
            f"{backward} backward ranks = {forward + backward}"
        )
    if replicas * sizes.context % sizes.expert:
        raise ValueError(
            f"plugins.fbd: {replicas} replicas x context {sizes.context} are no multiple of expert {sizes.expert}"
        )
    if fbd.apart:
        _check_apart(spec, replicas * forward)


def _check_tensor(sizes: Parallelism, fbd: FbdPlugin, tensor: int) -> None:
    """`tensor`: forward ranks that share a layer, other than the backward ranks'."""
    given = f"plugins.fbd: {tensor} forward tensor ranks"
    if max(tensor, sizes.tensor) % min(tensor, sizes.tensor):
        raise ValueError(f"{given} neither divide parallelism.tensor = {sizes.tensor} nor are a multiple of it")
    if sizes.expert > 1:
        raise ValueError(f"{given} can't run experts over parallelism.tensor = {sizes.tensor}: give as many of both")
    if fbd.mode == "Linears" or (sizes.pipeline < 2 and fbd.mode != "Layers"):
        raise ValueError(
            f"{given} can't send linears to parallelism.tensor = {sizes.tensor}: give as many of both, or mode Input "
            "and a pipeline of at least 2"
        )


def _check_apart(spec: Sized, ranks: int) -> None:
    """`ranks`: forward ones, which have nodes of their own."""
    if ranks % spec.proc_per_node:
        raise ValueError(
            f"plugins.fbd.forwardNodeSelector: {ranks} forward ranks fill no whole nodes of procPerNode = "
            f"{spec.proc_per_node}: change nodes or procPerNode"
        )
    others = {
        "elastic": spec.elastic is not None,
        "backend JobSet": spec.backend == "JobSet",
        "scheduling.queue": spec.scheduling.queue != "",
    }
    if given := next((name for name, is_given in others.items() if is_given), None):
        raise ValueError(f"plugins.fbd.forwardNodeSelector can't be used with {given}: leave one of them out")
