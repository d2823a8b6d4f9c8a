"""What recording costs on this machine, and in the ranks that run on it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from importlib import import_module
from importlib.util import find_spec

from megatronapp.scan.measure import mark_cost_ns, resolving_cost_ns
from megatronapp.scan.running import running_ranks


def checks() -> Iterator[tuple[str, bool | None, str]]:
    """For `megatronapp doctor`: (name, there or optional, in words)."""
    stream = _current_stream()
    costs = mark_cost_ns(stream)
    yield "cost of a mark", True, ", ".join(f"{what} {cost:.0f} ns" for what, cost in costs.items())
    yield "resolving a mark", True, f"{resolving_cost_ns(stream):.0f} ns of a thread of its own"
    each = costs.get("stream mark", costs["host mark"])
    for rank in running_ranks():
        share = rank.marks * each / 1e6
        yield f"process {rank.pid}", True, f"step {rank.step}: {rank.marks} marks, about {share:.2f} ms of its thread"


def _current_stream() -> Callable[[int], int] | None:
    """Of the first GPU, where PyTorch has one."""
    if find_spec("torch") is None:
        return None
    torch = import_module("torch")
    if not torch.cuda.is_available():
        return None
    torch.cuda.current_stream(0).synchronize()  # makes the context
    source: Callable[[int], int] = torch._C._cuda_getCurrentRawStream
    return source
