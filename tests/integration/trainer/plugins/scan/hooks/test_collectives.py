"""Each of torch.distributed's collectives, by each of its names, is one span and one step of its frontier."""

from __future__ import annotations

import warnings

import torch
import torch.distributed as dist

from megatronapp.trainer.plugins.scan.communicators import Communicators
from megatronapp.trainer.plugins.scan.frontier import Frontiers
from megatronapp.trainer.plugins.scan.hooks.collectives import FUNCTIONS, CollectiveHooks
from megatronapp.trainer.plugins.scan.hooks.probe import Probe
from megatronapp.trainer.plugins.scan.operations import Operation
from megatronapp.trainer.plugins.scan.recorder import Recorder
from megatronapp.trainer.plugins.scan.recorders import make_python_recorder
from tests.support.forked import run_forked
from tests.unit.trainer.plugins.scan.recorded import Reader, resolved

HALF, WHOLE = 16, 32
"""Bytes of what a rank holds alone, and of what both hold."""
Rows = list[tuple[Operation, int]]
"""Operation and bytes."""


def arguments() -> dict[str, tuple[object, ...]]:
    """Of each function that this PyTorch and gloo have."""
    half, whole = torch.ones(HALF // 4), torch.ones(WHOLE // 4)
    parts = [torch.ones(HALF // 4) for _ in range(2)]
    known: dict[str, tuple[object, ...]] = {
        "all_reduce": (whole,),
        "all_gather": (parts, half),
        "all_gather_into_tensor": (whole, half),
        "all_gather_single": (whole, half),
        "_all_gather_base": (whole, half),
        "reduce_scatter": (half, parts),
        "reduce_scatter_tensor": (half, whole),
        "reduce_scatter_single": (half, whole),
        "_reduce_scatter_base": (half, whole),
        "broadcast": (whole, 0),
        "all_to_all_single": (torch.empty(WHOLE // 4), whole),
        "barrier": (),
    }
    assert FUNCTIONS.keys() - known.keys() == {"all_to_all"}  # which gloo has not
    return {name: given for name, given in known.items() if hasattr(dist, name)}


def recorded() -> list[tuple[str, Rows, Rows, int]]:
    """By function: the spans of a call and of an asynchronous one, and how far the frontier moved."""
    warnings.simplefilter("ignore")
    dist.init_process_group("gloo")
    recorder = make_python_recorder(torch.device("cpu"))
    frontiers, communicators = Frontiers(recorder), Communicators(lambda _new: None, range(dist.get_world_size()))
    hooks = CollectiveHooks(Probe(recorder, communicators, frontiers, on=True))
    hooks.install()
    found = []
    for name, given in arguments().items():
        before = completed(recorder)
        getattr(dist, name)(*given)
        once = rows(recorder)
        getattr(dist, name)(*given, async_op=True).wait()
        found.append((name, once, rows(recorder), completed(recorder) - before))
    hooks.remove()
    dist.destroy_process_group()
    return found


def rows(recorder: Recorder) -> Rows:
    columns = resolved(recorder).columns
    return [(Operation(name), size) for name, size in zip(columns["name"], columns["bytes"], strict=True)]


def completed(recorder: Recorder) -> int:
    return sum(frontier.completed for frontier in Reader(recorder).heartbeat().frontiers)


def test_each_call_is_one_span_by_whatever_name() -> None:
    for found in run_forked(2, recorded):
        for name, once, asynchronous, moved in found:
            operation, *_ = FUNCTIONS[name]
            size = 0 if name == "barrier" else WHOLE
            assert once == asynchronous == [(operation, size)], name
            assert moved == 2, name
