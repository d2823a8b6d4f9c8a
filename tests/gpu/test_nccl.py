"""The same losses on GPUs: every layout on NCCL, and bit for bit with plug-ins on and off.

Beginning with CUDA and NCCL takes a process longer than twenty small steps, so that the ranks of one world begin once
and train what is asked of them in turn.
"""

from __future__ import annotations

import os
import shlex
import sys
import time
import traceback
from collections.abc import Iterable, Mapping
from pathlib import Path

import pytest

os.environ.setdefault("PYTORCH_NVML_BASED_CUDA_CHECK", "1")  # counting devices must not start CUDA: ranks are forks

import torch

from megatronapp.trainer import launch  # noqa: F401  (imported once, before the ranks are forked)
from megatronapp.trainer.plugins.dpp import DppPlugin
from megatronapp.trainer.plugins.megatrace import MegatracePlugin
from megatronapp.trainer.plugins.scan import ScanPlugin
from megatronapp.trainer.plugins.scope import ScopePlugin
from tests.support.forked import run_forked
from tests.support.ports import free_port
from tests.support.training import TINY, train

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.timeout(400),
    pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs 2 CUDA devices"),
]

STEPS = 20
SECONDS = 380.0
"""Of all that a world trains."""
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
PLANNED = f"{WATCHED} --use-dpp --dpp-policy interleaved"
ENVIRONMENT = {"CUBLAS_WORKSPACE_CONFIG": ":4096:8", "NCCL_ALGO": "Ring"}
"""Without these cuBLAS and NCCL may sum in another order from run to run."""

Plugins = tuple[type, ...]
Runs = dict[str, list[float] | str]
"""Losses by flags; of a run that failed, its traceback."""


class World:
    """The ranks of so many GPUs: what they are asked for is trained by one start of them, and kept."""

    def __init__(self, size: int, folder: Path) -> None:
        self._size, self._folder = size, folder
        self._found: dict[tuple[Plugins, tuple[str, ...]], Runs] = {}

    def losses(self, flags: str, plugins: Plugins, among: Iterable[str]) -> list[float]:
        """Of one of the runs that are begun together."""
        begun = plugins, tuple(among)
        if begun not in self._found:
            runs = {each: free_port() for each in begun[1]}
            asked = (train_all, runs, plugins, str(self._folder))
            self._found[begun] = run_forked(self._size, *asked, timeout=SECONDS, environment=ENVIRONMENT)[-1]
        found = self._found[begun][flags]
        assert isinstance(found, list), found
        assert len(found) == STEPS
        return found

    def stock(self, flags: str) -> list[float]:
        layouts = list(LAYOUTS.get(self._size, {"one GPU": ""}).values())
        return self.losses(flags, (), [*layouts, *(f"{BF16} {each}" for each in layouts)])

    def with_plugins(self, layout: str, flags: str, plugins: Plugins) -> list[float]:
        among = PIPELINES if DppPlugin in plugins else CASES
        asked = [LAYOUTS[world][name] for world, name in among if world == self._size]
        return self.losses(f"{BF16} {layout} {flags}", plugins, [f"{BF16} {each} {flags}" for each in asked])


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
    if torch.cuda.device_count() < size:
        pytest.skip(f"needs {size} CUDA devices")
    return worlds[size]


@pytest.mark.parametrize(("world", "layout"), CASES, indirect=["world"])
def test_layout_has_the_losses_of_one_gpu(world: World, layout: str, worlds: dict[int, World]) -> None:
    flags = (ON_TWO | ON_FOUR)[layout]

    assert world.stock(flags) == pytest.approx(worlds[1].stock(""), rel=1e-5)


@pytest.mark.parametrize("granularity", ["base", "full"])
@pytest.mark.parametrize(("world", "layout"), CASES, indirect=["world"])
def test_tracing_changes_no_bit(world: World, layout: str, granularity: str) -> None:
    flags = (ON_TWO | ON_FOUR)[layout]

    traced = world.with_plugins(flags, f"{TRACE} {granularity}", (ScanPlugin,))

    assert traced == world.stock(f"{BF16} {flags}")


@pytest.mark.parametrize(("world", "layout"), CASES, indirect=["world"])
def test_all_that_watches_at_once_changes_no_bit(world: World, layout: str) -> None:
    flags = (ON_TWO | ON_FOUR)[layout]

    watched = world.with_plugins(flags, WATCHED, (ScanPlugin, MegatracePlugin, ScopePlugin))

    assert watched == world.stock(f"{BF16} {flags}")


@pytest.mark.parametrize(("world", "layout"), PIPELINES, indirect=["world"])
def test_a_dynamic_pipeline_that_is_watched_changes_no_bit(world: World, layout: str) -> None:
    flags = (ON_TWO | ON_FOUR)[layout]

    planned = world.with_plugins(flags, PLANNED, (DppPlugin, ScanPlugin, MegatracePlugin, ScopePlugin))

    assert planned == world.stock(f"{BF16} {flags}")
