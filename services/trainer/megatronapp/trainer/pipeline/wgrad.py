"""B split from W: what a backward pass does not need at once, the gradients of linear layers' weights, is done later.

Through the seam of linears.py. Where B has a collective of tensor parallelism, which megatron-core hides behind W, an
earlier microbatch's W of the same layer is run in its place; where none is left the layer is not split. A layer that is
recomputed is not split either: its W would hold all that was recomputed. Outside `active`, and in evaluations, layers
are megatron-core's own.

Transformer Engine's layers put W off themselves where megatron-core's `delay_wgrad_compute` is set when they are made,
in every backward pass from then on; they keep it in the order of their backward passes, which is that of microbatches.
They sum their biases with W, too, also where a bias's gradient has come in the backward pass (of a bias that is added
outside of the layer, and in 8 bits): it is kept with its microbatch until then, or the next one's would be added to it.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import pairwise
from typing import Any

import torch
from megatron.core.pipeline_parallel import schedules

from megatronapp.trainer.patches import Patches
from megatronapp.trainer.pipeline.linears import Product, Wgrad, route_linears


class DeferredWgrad:
    """Weight gradients that are still to be computed. A weight's are computed in the order of microbatches."""

    def __init__(self) -> None:
        self._pending: defaultdict[int, dict[int, deque[tuple[int, Wgrad]]]] = defaultdict(dict)
        """By chunk and weight (its id): (microbatch, W)."""
        self._own: list[_OwnLayers] = []
        """By chunk; none where no layer does so."""
        self._active = False
        self._backward: tuple[int, int] | None = None

    def install(self, chunks: Sequence[torch.nn.Module]) -> None:
        route_linears(chunks, self)
        own = [_OwnLayers(chunk) for chunk in chunks]
        self._own = own if any(each.layers for each in own) else []

    @contextmanager
    def active(self) -> Iterator[None]:
        """Forward passes in it are split in their backward passes, which are in it too."""
        self._active = True
        try:
            yield
        finally:
            self._active = False

    @contextmanager
    def backward_of(self, chunk: int, microbatch: int) -> Iterator[None]:
        """What backward passes in it put off belongs to this microbatch."""
        self._backward = chunk, microbatch
        try:
            yield
        finally:
            self._backward = None
        if self._own:
            self._own[chunk].keep_early()

    def run(self, chunk: int, microbatch: int) -> None:
        """W of a microbatch: what is left of it. Each gather is hidden behind the product before it."""
        left: list[Wgrad] = []
        for queue in self._pending[chunk].values():
            while queue and queue[0][0] <= microbatch:
                left.append(queue.popleft()[1])
        for first in left[:1]:
            first.begin()
        for now, following in pairwise([*left, None]):
            if following is not None:
                following.begin()
            if now is not None:
                now.run()
        if self._own:
            self._own[chunk].run()

    @contextmanager
    def at_once(self) -> Iterator[None]:
        """Under megatron-core's own schedules: what layers have put off themselves follows each backward pass."""
        own = [layer for each in self._own for layer in each.layers]
        stock, patches = schedules.backward_step, Patches()

        def backward_step(*args: Any, **kwargs: Any) -> Any:
            of_input = stock(*args, **kwargs)
            for layer in own:
                if not layer.wgrad_store.context.empty():
                    layer.backward_dw()
            return of_input

        if own:
            patches.set(schedules, "backward_step", backward_step)
        try:
            yield
        finally:
            patches.restore()

    # ---- the port of linears.py

    def takes_part(self) -> bool:
        """A forward pass during a backward pass recomputes."""
        return self._active and self._backward is None and torch.is_grad_enabled()

    def output(self, product: Product) -> torch.Tensor:
        return product()

    def take(self, wgrad: Wgrad, *, hides: bool) -> Sequence[Wgrad]:
        if self._backward is None:
            return [wgrad]
        chunk, microbatch = self._backward
        queue = self._pending[chunk].setdefault(id(wgrad.weight), deque())
        queue.append((microbatch, wgrad))
        return [queue.popleft()[1]] if hides else []


class _OwnLayers:
    """Those of a chunk that put off W themselves."""

    def __init__(self, chunk: torch.nn.Module) -> None:
        self.layers: list[Any] = [each for each in reversed(list(chunk.modules())) if _puts_off(each)]
        """In the order of a backward pass."""
        self._parameters = [each for layer in self.layers for each in layer.parameters() if _waits_for_w(each)]
        self._early: deque[list[tuple[torch.nn.Parameter, torch.Tensor]]] = deque()
        """By microbatch, what its backward pass gave to these parameters."""

    def keep_early(self) -> None:
        self._early.append([(each, each.grad) for each in self._parameters if each.grad is not None])
        for parameter, _ in self._early[-1]:
            parameter.grad = None

    def run(self) -> None:
        """The oldest W."""
        for parameter, gradient in self._early.popleft():
            parameter.grad = gradient
        for layer in self.layers:
            layer.backward_dw()


def _puts_off(layer: torch.nn.Module) -> bool:
    """As megatron-core's DistributedDataParallel knows them; Transformer Engine's attention has no W."""
    if not hasattr(layer, "register_wgrad_accumulation_and_reduce_hooks"):
        return False
    return getattr(layer.wgrad_store, "context", None) is not None


def _waits_for_w(parameter: torch.nn.Parameter) -> bool:
    """Likewise: it is not summed in a backward pass."""
    return getattr(parameter, "skip_backward_post_hook", False)
