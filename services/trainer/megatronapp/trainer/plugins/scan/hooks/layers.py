"""Granularity full: layers and their parts, one mark per border, the end of one part being the start of the next.

A part's border is a wrapper around the `forward` of the module that begins it, without torch's hook machinery; a
backward border is a hook on the layer's output tensor. (Full backward hooks break pipeline parallelism, which frees
outputs that such hooks turn into views.) Outside of steps traced in full the model carries nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch

from megatronapp.trainer.patches import Patches
from megatronapp.trainer.plugins.scan.hooks.probe import Probe
from megatronapp.trainer.plugins.scan.operations import Operation

NONE = -1
STACKS = ("encoder", "decoder")
"""Of layers, in the order of a forward pass. In a model that has both, the second one's numbers go on from the first's.
"""
PARTS: tuple[tuple[str, Operation], ...] = (
    ("self_attention.linear_qkv", Operation.QKV),
    ("self_attention.core_attention", Operation.CORE_ATTENTION),
    ("self_attention.linear_proj", Operation.ATTENTION_PROJECTION),
    ("pre_cross_attn_layernorm", Operation.NORM),
    ("cross_attention.linear_kv", Operation.QKV),
    ("cross_attention.core_attention", Operation.CORE_ATTENTION),
    ("cross_attention.linear_proj", Operation.ATTENTION_PROJECTION),
    ("pre_mlp_layernorm", Operation.NORM),
    ("mlp.linear_fc1", Operation.MLP_FC1),
    ("mlp.linear_fc2", Operation.MLP_FC2),
    ("mlp.router", Operation.ROUTER),
    ("mlp.experts", Operation.EXPERTS),
)
"""Modules of a layer that begin a part. What follows a module, up to the next one, counts as its part."""


class LayerHooks:
    """Open spans are, at any time, none, a (layer_forward, part) pair of layer `_layer`, a part outside of the layers
    (`_outside`), or the layer_backward of layer `_backward`."""

    def __init__(self, probe: Probe) -> None:
        self._probe = probe
        self._switch = probe.recorder.switch
        self._patches = Patches()
        self._wrappers: list[tuple[torch.nn.Module, Callable[..., Any]]] = []
        self._layer = self._backward = NONE
        self._outside = False

    def models(self, chunks: Sequence[torch.nn.Module]) -> None:
        """Prepare for these model chunks; changes nothing in them."""
        for chunk in chunks:
            self._wrappers += self._wrap(chunk)

    def attach(self, full: bool) -> None:
        """At a step's border: put the wrappers on the model, or take them off."""
        if full == self._probe.full:
            return
        self._probe.full = full
        self._probe.settle = self.settle
        self._patches.restore()
        if full:
            for module, wrapper in self._wrappers:
                self._patches.set(module, "forward", wrapper)

    def settle(self) -> None:
        """A microbatch's forward or backward ends: so does what is open in it."""
        self._border(NONE, NONE)

    # -- wrappers --

    def _wrap(self, chunk: torch.nn.Module) -> Iterator[tuple[torch.nn.Module, Callable[..., Any]]]:
        for name, operation in (("embedding", Operation.EMBEDDING), ("output_layer", Operation.OUTPUT_LAYER)):
            if (module := _find(chunk, name)) is not None:
                ends = operation is Operation.OUTPUT_LAYER
                yield module, self._alone(module.forward, operation, ends=ends)
        before = 0
        for stack in STACKS:
            if (norm := _find(chunk, f"{stack}.final_layernorm")) is not None:
                yield norm, self._alone(norm.forward, Operation.NORM, ends=False)
            layers = _find(chunk, f"{stack}.layers") or ()
            for position, layer in enumerate(layers):
                yield layer, self._whole_layer(layer, before + int(layer.layer_number), first=position == 0)
                for name, operation in PARTS:
                    if (module := _find(layer, name)) is not None:
                        yield module, self._part(module.forward, operation)
            before += len(layers)

    def _whole_layer(self, layer: Any, number: int, *, first: bool) -> Callable[..., Any]:
        forward, probe, backward_begins = layer.forward, self._probe, self._backward_begins(number)
        first_part = Operation.QKV if _find(layer, "input_layernorm") is None else Operation.NORM

        def forward_layer(*args: Any, **kwargs: Any) -> Any:
            if not probe.on:
                return forward(*args, **kwargs)
            self._border(Operation.LAYER_FORWARD, first_part)
            self._layer = number
            output = forward(*args, **kwargs)
            if torch.is_grad_enabled():
                _on_gradient(output[0] if isinstance(output, tuple) else output, backward_begins)
                if first:
                    _on_gradient(args[0] if args else kwargs["hidden_states"], self._backward_ends)
            return output

        return forward_layer

    def _part(self, forward: Callable[..., Any], operation: Operation) -> Callable[..., Any]:
        switch = self._switch
        then_activation = operation == Operation.MLP_FC1

        def forward_part(*args: Any, **kwargs: Any) -> Any:
            layer = self._layer
            if layer == NONE:  # recomputed inside of the layer's backward
                return forward(*args, **kwargs)
            switch(1, layer, operation, NONE)
            output = forward(*args, **kwargs)
            if then_activation:
                switch(1, layer, Operation.MLP_ACTIVATION, NONE)
            return output

        return forward_part

    def _alone(self, forward: Callable[..., Any], operation: Operation, *, ends: bool) -> Callable[..., Any]:
        """`ends`: with the module; else where the next part begins, or the forward ends."""

        def forward_alone(*args: Any, **kwargs: Any) -> Any:
            if not self._probe.on:
                return forward(*args, **kwargs)
            self._border(operation, NONE)
            self._outside = True
            output = forward(*args, **kwargs)
            if ends:
                self._border(NONE, NONE)
            return output

        return forward_alone

    def _backward_begins(self, number: int) -> Callable[[torch.Tensor], None]:
        def gradient_is_there(_: torch.Tensor) -> None:
            if self._probe.on:
                self._border(Operation.LAYER_BACKWARD, NONE)
                self._backward = number

        return gradient_is_there

    def _backward_ends(self, _: torch.Tensor) -> None:
        if self._probe.on:
            self._border(NONE, NONE)

    def _border(self, open_first: int, open_second: int) -> None:
        """End what is open and begin what comes next, at one mark."""
        if self._layer != NONE:
            self._switch(2, self._layer, open_first, open_second)
        elif self._backward != NONE:
            self._switch(1, self._backward, open_first, open_second)
        elif self._outside or open_first != NONE:
            self._switch(int(self._outside), NONE, open_first, open_second)
        self._layer = self._backward = NONE
        self._outside = False


def _find(module: Any, path: str) -> Any:
    """The submodule at a dotted path; None when it is missing or does nothing."""
    from megatron.core.transformer.identity_op import IdentityOp

    for name in path.split("."):
        module = getattr(module, name, None)
    return None if isinstance(module, IdentityOp) else module


def _on_gradient(tensor: torch.Tensor, hook: Callable[[torch.Tensor], None]) -> None:
    if tensor.requires_grad:
        tensor.register_hook(hook)
