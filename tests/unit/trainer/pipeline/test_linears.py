"""The seam of linear layers, and weight gradients that are put off through it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
import torch.distributed as dist
from megatron.core.tensor_parallel.layers import ColumnParallelLinear
from torch._C._distributed_c10d import HashStore

from megatronapp.trainer.pipeline.linears import Wgrad, route_linears
from megatronapp.trainer.pipeline.wgrad import DeferredWgrad

TOKENS, WIDTH, OUT = 6, 4, 3


class Layer(ColumnParallelLinear):  # type: ignore[misc]
    """What megatron-core's layers hand to `_forward_impl`."""

    def __init__(self, *, reduces: bool, group: Any) -> None:
        torch.nn.Module.__init__(self)
        self.weight = torch.nn.Parameter(torch.randn(OUT, WIDTH))
        self.main_grad = self.weight.main_grad = torch.zeros(OUT, WIDTH)  # type: ignore[attr-defined]
        self._reduces, self._group = reduces, group

    def forward(self, input_: torch.Tensor) -> Any:
        return self._forward_impl(
            input=input_, weight=self.weight, bias=None, gradient_accumulation_fusion=False,
            allreduce_dgrad=self._reduces, sequence_parallel=False, tp_group=self._group,
        )  # fmt: skip


@pytest.fixture(scope="module")
def group() -> Iterator[Any]:
    dist.init_process_group("gloo", store=HashStore(), rank=0, world_size=1)
    yield dist.group.WORLD
    dist.destroy_process_group()


def passes_of(layer: Layer, deferred: DeferredWgrad, microbatches: int) -> list[torch.Tensor]:
    """Forward and backward of each; what each adds to the weight's gradient."""
    products = []
    with deferred.active():
        for microbatch in range(microbatches):
            input_ = torch.randn(TOKENS, WIDTH, requires_grad=True)
            output = layer(input_)
            with deferred.backward_of(0, microbatch):
                output.backward(gradient := torch.randn(TOKENS, OUT))
            assert torch.equal(input_.grad, gradient.matmul(layer.weight))  # type: ignore[arg-type]
            products.append(gradient.t().matmul(input_.detach()))
    return products


def routed(group: Any, *, reduces: bool) -> tuple[Layer, DeferredWgrad]:
    layer, deferred = Layer(reduces=reduces, group=group), DeferredWgrad()
    deferred.install([torch.nn.ModuleDict({"linear_qkv": layer})])
    return layer, deferred


def test_without_a_collective_w_waits_until_it_is_run(group: Any) -> None:
    layer, deferred = routed(group, reduces=False)

    first, second = passes_of(layer, deferred, 2)

    assert layer.weight.grad is None
    assert not layer.main_grad.any()
    deferred.run(0, 0)
    assert torch.equal(layer.main_grad, first)
    deferred.run(0, 1)
    assert torch.equal(layer.main_grad, first + second)


def test_a_collective_is_covered_by_the_oldest_w_of_the_layer(group: Any) -> None:
    layer, deferred = routed(group, reduces=True)
    waiting = torch.randn(TOKENS, WIDTH), torch.randn(TOKENS, OUT)
    with deferred.backward_of(0, 0):
        assert deferred.take(Wgrad(layer.weight, *waiting, None), hides=False) == []

    passes_of(layer, deferred, 1)

    older = waiting[1].t().matmul(waiting[0])
    assert torch.equal(layer.main_grad, older)
    deferred.run(0, 0)
    assert not torch.equal(layer.main_grad, older)


def test_a_layer_with_a_collective_that_nothing_covers_is_not_split(group: Any) -> None:
    layer, deferred = routed(group, reduces=True)

    (product,) = passes_of(layer, deferred, 1)

    assert torch.equal(layer.main_grad, product)
    deferred.run(0, 0)
    assert torch.equal(layer.main_grad, product)


def test_what_is_recomputed_or_not_active_or_fused_is_megatron_cores_own(group: Any) -> None:
    layer, deferred = routed(group, reduces=False)
    ways = [layer._forward_impl.keywords["stock"]]
    input_ = torch.randn(TOKENS, WIDTH, requires_grad=True)

    outputs = [layer(input_)]
    with deferred.active(), deferred.backward_of(0, 0):
        outputs.append(layer(input_))
    with deferred.active(), torch.no_grad():
        outputs.append(layer(input_))

    assert ways[0].__func__ is ColumnParallelLinear._forward_impl
    assert [type(each.grad_fn).__name__ for each in outputs[:2]] == [
        "LinearWithGradAccumulationAndAsyncCommunicationBackward"
    ] * 2
    assert outputs[2].grad_fn is None


def test_the_output_layer_is_left_whole(group: Any) -> None:
    layer, deferred = Layer(reduces=False, group=group), DeferredWgrad()

    route_linears([torch.nn.ModuleDict({"output_layer": layer})], deferred)

    assert layer._forward_impl.__func__ is ColumnParallelLinear._forward_impl
