"""The same losses on GPUs: every layout on NCCL, and bit for bit with plug-ins on and off.

Beginning with CUDA, and with each layout's communicators, takes ranks ten times as long as twenty small steps, nearly
all of it on the host. Ranks that begin once train in turn what belongs together, and others the rest beside them on
the same GPUs, as many as the host has processors for.
"""

from __future__ import annotations

import os
import shlex
import sys
import time
import traceback
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

import pytest

from megatronapp.trainer import launch  # noqa: F401  (imported once, before the ranks are forked)
from megatronapp.trainer.plugins.dpp import DppPlugin
from megatronapp.trainer.plugins.megatrace import MegatracePlugin
from megatronapp.trainer.plugins.scan import ScanPlugin
from megatronapp.trainer.plugins.scope import ScopePlugin
from tests.gpu.devices import REHEARSED, needs
from tests.support.forked import run_forked
from tests.support.ports import free_port
from tests.support.training import TINY, train

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.timeout(400),
    needs(2),
]

STEPS = 20
SECONDS = 380.0
"""Of all that ranks train in turn."""
PROCESSORS_A_RANK = 2
"""Of the host, for a rank and its agent."""
BF16 = "--bf16"
PIPELINE = "--pipeline-model-parallel-size 2"
INTERLEAVED = f"{PIPELINE} --num-layers-per-virtual-pipeline-stage 1"
DATA = "--use-distributed-optimizer --overlap-grad-reduce --overlap-param-gather --ddp-bucket-size 10000"
TENSOR = "--tensor-model-parallel-size 2"
SEQUENCE = f"{TENSOR} --sequence-parallel"
ON_TWO = {
    "PP 2": PIPELINE,
    "PP 2 x VPP 2": INTERLEAVED,
    "PP 2 x VPP 2, messages not overlapped": f"{INTERLEAVED} --no-overlap-p2p-communication",
    "TP 2": TENSOR,
    "TP 2, sequence parallel": SEQUENCE,
    "DP 2": "",
    "DP 2, distributed optimizer": "--use-distributed-optimizer",
    "DP 2, distributed optimizer, overlapped": DATA,
}
ON_FOUR = {
    "PP 4": "--pipeline-model-parallel-size 4",
    "TP 4": "--tensor-model-parallel-size 4 --sequence-parallel",
    "DP 4": DATA,
    "PP 2 x VPP 2 x DP 2": f"{INTERLEAVED} {DATA}",
    "TP 2 x PP 2 x VPP 2": f"{SEQUENCE} {INTERLEAVED}",
    "TP 2 x DP 2": f"{SEQUENCE} {DATA}",
}
LAYOUTS = {2: ON_TWO, 4: ON_FOUR}
CASES = [(world, layout) for world, layouts in LAYOUTS.items() for layout in layouts]
PIPELINES = [(world, layout) for world, layout in CASES if "PP" in layout and "not overlapped" not in layout]

TRACE = "--trace --trace-interval 2 --trace-granularity"
WATCHED = f"{TRACE} full --nccl-trace --scope"
PLANNED = f"{WATCHED} --use-dpp --dpp-policy interleaved-zb"
ENVIRONMENT = {"CUBLAS_WORKSPACE_CONFIG": ":4096:8", "NCCL_ALGO": "Ring"}
"""Without these cuBLAS and NCCL may sum in another order from run to run."""

Plugins = tuple[type, ...]
WATCHING: Plugins = (ScanPlugin, MegatracePlugin, ScopePlugin)
DYNAMIC: Plugins = (DppPlugin, *WATCHING)
WITH_PLUGINS: list[tuple[Plugins, str]] = [
    ((ScanPlugin,), f"{TRACE} base"),
    ((ScanPlugin,), f"{TRACE} full"),
    (WATCHING, WATCHED),
    (DYNAMIC, PLANNED),
]
Runs = dict[str, list[float] | str]
"""Losses by flags; of a run that failed, its traceback."""


class World:
    """The ranks of so many GPUs. Whatever the tests ask of them begins when the first one asks, and is kept."""

    def __init__(self, size: int, folder: Path) -> None:
        self._size, self._folder = size, folder
        self._found: dict[tuple[Plugins, str], Future[Runs]] = {}

    def losses(self, flags: str, plugins: Plugins = ()) -> list[float]:
        """Of one of the runs in `asked`."""
        if not self._found:
            self._begin()
        found = self._found[plugins, flags].result()[flags]
        assert isinstance(found, list), found
        assert len(found) == STEPS
        return found

    def _begin(self) -> None:
        at_once = max(1, (os.cpu_count() or 1) // (PROCESSORS_A_RANK * self._size)) if REHEARSED else 1
        threads = ThreadPoolExecutor(at_once)
        for plugins, every in asked(self._size):
            runs = threads.submit(self._train, every, plugins)
            self._found |= {(plugins, flags): runs for flags in every}
        threads.shutdown(wait=False)

    def _train(self, every: list[str], plugins: Plugins) -> Runs:
        runs = {flags: free_port() for flags in every}
        arguments = (train_all, runs, plugins, str(self._folder))
        return run_forked(self._size, *arguments, timeout=SECONDS, environment=ENVIRONMENT)[-1]


def asked(size: int) -> Iterator[tuple[Plugins, list[str]]]:
    """What a world trains, by what its ranks do one after the other."""
    layouts = list(LAYOUTS.get(size, {"one GPU": ""}).values())
    yield (), layouts
    if size == 1:
        return
    yield (), [f"{BF16} {each}" for each in layouts]
    pipelines = [LAYOUTS[world][name] for world, name in PIPELINES if world == size]
    for plugins, flags in WITH_PLUGINS:
        yield plugins, [f"{BF16} {each} {flags}" for each in (pipelines if DppPlugin in plugins else layouts)]


def train_all(runs: Mapping[str, int], plugins: Plugins, folder: str) -> Runs:
    """In turn, flags and port of each. After one that failed nothing is tried: its other ranks may still be in it."""
    found: Runs = {}
    for number, (each, port) in enumerate(runs.items()):
        print(f"run {number} of {len(runs)} begins at {time.monotonic():.1f} s: {each}", file=sys.stderr, flush=True)
        os.environ["MASTER_PORT"] = str(port)
        try:
            traces = f"--trace-dir {shlex.quote(folder)}" if "--trace" in each else ""
            model = f"{TINY} --train-iters {STEPS} --deterministic-mode {each} {traces}"
            found[each] = train(model, plugins=plugins).losses
        except Exception:  # noqa: BLE001
            return dict.fromkeys(runs, f"failed at or after: {each}\n{traceback.format_exc()}") | found
    return found


@pytest.fixture(scope="module")
def worlds(tmp_path_factory: pytest.TempPathFactory) -> dict[int, World]:
    return {size: World(size, tmp_path_factory.mktemp(f"of-{size}")) for size in (1, *LAYOUTS)}


@pytest.fixture
def world(request: pytest.FixtureRequest, worlds: dict[int, World]) -> World:
    size: int = request.param
    return worlds[size]


def of_worlds(cases: Sequence[tuple[int, str]]) -> pytest.MarkDecorator:
    enough = [pytest.param(*case, marks=needs(case[0])) for case in cases]
    return pytest.mark.parametrize(("world", "layout"), enough, indirect=["world"])


@of_worlds(CASES)
def test_layout_has_the_losses_of_one_gpu(world: World, layout: str, worlds: dict[int, World]) -> None:
    flags = (ON_TWO | ON_FOUR)[layout]

    assert world.losses(flags) == pytest.approx(worlds[1].losses(""), rel=1e-5)


@pytest.mark.parametrize("granularity", ["base", "full"])
@of_worlds(CASES)
def test_tracing_changes_no_bit(world: World, layout: str, granularity: str) -> None:
    flags = f"{BF16} {(ON_TWO | ON_FOUR)[layout]}"

    traced = world.losses(f"{flags} {TRACE} {granularity}", (ScanPlugin,))

    assert traced == world.losses(flags)


@of_worlds(CASES)
def test_all_that_watches_at_once_changes_no_bit(world: World, layout: str) -> None:
    flags = f"{BF16} {(ON_TWO | ON_FOUR)[layout]}"

    watched = world.losses(f"{flags} {WATCHED}", WATCHING)

    assert watched == world.losses(flags)


@of_worlds(PIPELINES)
def test_a_dynamic_pipeline_that_is_watched_changes_no_bit(world: World, layout: str) -> None:
    flags = f"{BF16} {(ON_TWO | ON_FOUR)[layout]}"

    planned = world.losses(f"{flags} {PLANNED}", DYNAMIC)

    assert planned == world.losses(flags)
