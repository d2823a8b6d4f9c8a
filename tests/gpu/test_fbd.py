"""MegaFBD on GPUs, also with a forward rank that shares one: losses and gradients are stock's to the bit, in bf16. With
forward ranks on CPUs they are near it.

Can be rehearsed on CPU ranks (devices.py), over gloo.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from functools import cache, partial

import pytest

from megatronapp.trainer import launch  # noqa: F401  (imported once, before the ranks are forked)
from megatronapp.trainer.plugins.base import Plugin
from megatronapp.trainer.plugins.fbd import FbdPlugin
from megatronapp.trainer.plugins.fbd import plan as flags
from megatronapp.trainer.plugins.fbd.roles import Role
from tests.gpu.devices import needs
from tests.gpu.worlds import Worlds
from tests.support.disaggregated import RECOMPUTE, Case
from tests.support.varied_orders import Trained, trained

pytest.importorskip("megatronapp.rdma", reason="the transport's wheel is not installed: pip install native/rdma")
pytestmark = [pytest.mark.gpu, pytest.mark.timeout(150)]

STEPS = 5
FLAGS = "--bf16 --deterministic-mode"
ENVIRONMENT = {"CUBLAS_WORKSPACE_CONFIG": ":4096:8", "NCCL_ALGO": "Ring"}
"""Without these cuBLAS and NCCL may sum in another order from run to run."""
FLASH = f"{FLAGS} --attention-backend flash"
WORLDS = Worlds(ENVIRONMENT)


@pytest.fixture(scope="module", autouse=True)
def _worlds_end() -> Iterator[None]:
    yield
    WORLDS.close()


@cache
def on_devices(devices: tuple[int, ...], asked: str, *plugins: type[Plugin]) -> list[Trained]:
    """By rank: each has the device that is named for it."""
    run = partial(_trained_on, devices)
    return WORLDS.call(len(devices), run, asked, *plugins)


def _trained_on(devices: tuple[int, ...], asked: str, *plugins: type[Plugin]) -> Trained:
    os.environ["LOCAL_RANK"] = str(devices[int(os.environ["RANK"])])
    return trained(asked, *plugins, steps=STEPS)


def assert_bitwise_stocks(case: Case, devices: tuple[int, ...]) -> None:
    beside = case.layout.partition("--fbd")[0] + ("" if case.linears else f" {RECOMPUTE}")

    stock = on_devices(tuple(range(case.pipeline)), beside)
    every = on_devices(devices, case.asked, FbdPlugin)

    chosen = [every[rank] for rank in case.roles.ranks(Role.BACKWARD)]
    assert [each.gradients for each in chosen] == [each.gradients for each in stock]
    assert chosen[-1].losses == stock[-1].losses
    assert len(chosen[-1].losses) == len(set(chosen[-1].losses)) == STEPS


@needs(2)
@pytest.mark.parametrize("chosen", [FLAGS, FLASH], ids=["local attention", "fused attention"])
def test_linears_without_a_pipeline(chosen: str) -> None:
    assert_bitwise_stocks(Case(chosen, pipeline=1, linears=True), devices=(0, 1))


@needs(2)
@pytest.mark.parametrize("chosen", [FLAGS, FLASH], ids=["local attention", "fused attention"])
def test_layers_without_a_pipeline(chosen: str) -> None:
    assert_bitwise_stocks(Case(f"{chosen} --fbd-mode layers", pipeline=1), devices=(0, 1))


@needs(2)
def test_a_forward_rank_shares_a_device_with_a_backward_rank() -> None:
    case = Case(f"{FLAGS} {flags.APART}", forward_pipeline=1)  # backward ranks 0 and 1, then the forward rank

    assert_bitwise_stocks(case, devices=(0, 1, 0))


@needs(4)
def test_input_on_a_pipeline_beside_a_pipeline() -> None:
    assert_bitwise_stocks(Case(FLAGS, forward_pipeline=2), devices=(0, 1, 2, 3))


def assert_close_to_stocks(case: Case, ranks: int) -> None:
    """Of float32: CPUs round otherwise than GPUs."""
    stock = on_devices(tuple(range(case.pipeline)), case.layout)
    every = on_devices(tuple(range(ranks)), f"{case.asked} {flags.CPUS}", FbdPlugin)

    losses = every[case.roles.ranks(Role.BACKWARD)[-1]].losses
    assert losses == pytest.approx(stock[-1].losses, rel=1e-4)
    assert len(losses) == len(set(losses)) == STEPS


@needs(1)
def test_linears_of_a_cpu_rank_beside_one_gpu() -> None:
    assert_close_to_stocks(Case("", pipeline=1, linears=True), ranks=2)


@needs(2)
def test_input_of_a_cpu_rank_beside_two_gpus() -> None:
    assert_close_to_stocks(Case("", forward_pipeline=1), ranks=3)
