"""Hooks at sites, which exist only while somebody watches or disturbs there.

A tap first changes the value, then shows it: what is capture is what the model goes on with. It shows a view of the
model's own tensor, which is gone or overwritten when the hook returns (the schedule frees a stage's output, the softmax
masks its input in place), so whoever is shown it reduces or copies at once.

    hook → Tap → changes, one after the other → the model goes on with the result
               → readers of the value, in a first pass
               → readers of its gradient, when autograd brings it

torch's hooks stand around a module's `forward`, whatever another plug-in has made of that. Full backward hooks are not
used: they make views of outputs that the pipeline frees.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from megatronapp.core.scope.sites import TOKENS
from megatronapp.trainer.patches import Patches
from megatronapp.trainer.plugins.scope.experts import on_activations, rows_of
from megatronapp.trainer.plugins.scope.places import BIASED, EXPERT, EXPERT_ACT, INPUT, LOGITS, Place, Spot
from megatronapp.trainer.plugins.scope.position import Position
from megatronapp.trainer.plugins.scope.reduced import Reduced
from megatronapp.trainer.plugins.scope.saes import Sae
from megatronapp.trainer.plugins.scope.shards import WHOLE_HISTORY, Index, Shard
from megatronapp.trainer.plugins.scope.spots import spots

Change = Callable[[torch.Tensor, Index, Spot, Position], torch.Tensor]
"""The value that the model shall go on with: of the same shape and type, and the argument itself where it stays."""


@dataclass(frozen=True, slots=True)
class Capture:
    """A value in its site's axes, as the model has it on this rank, or its gradient (of the mean loss of the global
    batch). Not to be kept, nor written to."""

    spot: Spot
    value: torch.Tensor
    shard: Shard
    """Which part of the whole it is."""
    step: int
    microbatch: int = 0
    first_token: int = 0
    gradient: bool = False
    request: str | None = None
    """Of a generation."""
    key: torch.Tensor | None = None
    """Of scores and probabilities that are to be computed: the value is the query, and this the key, both as core
    attention is given them. Of what heads add: the value is the context, this the projection's weight. Of what experts
    add: the value are their rows, this says whose they are (experts.py)."""
    absent: torch.Tensor | None = None
    """Cells that other ranks have, where they are no stretch of an axis."""
    made: dict[Hashable, Reduced | None] = field(default_factory=dict)
    """What readers have made of it: who asks for the same takes that."""


Reader = Callable[[Capture], None]


@dataclass(slots=True)
class Demand:
    """What is wanted at one spot."""

    changes: list[Change] = field(default_factory=list)
    readers: list[Reader] = field(default_factory=list)
    gradient_readers: list[Reader] = field(default_factory=list)

    def __bool__(self) -> bool:
        return bool(self.changes or self.readers or self.gradient_readers)


class Taps:
    """Of one rank's model chunks, which are not wrapped for data parallelism."""

    def __init__(
        self, chunks: Sequence[torch.nn.Module], shard: Shard, position: Position, saes: Sequence[Sae] = ()
    ) -> None:
        self.spots = tuple(spots(chunks, saes))
        self._chunks = tuple(chunks)
        self._shard = shard
        self._position = position
        self._handles: list[Any] = []
        self._patches = Patches()

    @property
    def attached(self) -> bool:
        return bool(self._handles)

    def set(self, demands: Iterable[tuple[Spot, Demand]]) -> None:
        """Between two steps: what is wanted from now on, in place of all that was wanted before."""
        self.clear()
        wanted = [(spot, demand) for spot, demand in demands if demand]
        chunks = self._chunks if wanted else ()
        self._handles += [chunk.register_forward_pre_hook(self._position.begins) for chunk in chunks]
        for spot, demand in wanted:
            self._hook(spot, _Tap(spot, demand, self._shard, self._position))
        self._handles += [chunk.register_forward_hook(self._position.ends) for chunk in chunks]

    def clear(self) -> None:
        """The model is as if it had never been hooked."""
        while self._handles:
            self._handles.pop().remove()
        self._patches.restore()

    def _hook(self, spot: Spot, tap: _Tap) -> None:
        place, module = spot.place, spot.module
        if spot.site == EXPERT:
            self._patches.set(module, place.method, _gathering(module, getattr(module, place.method), tap))
        elif spot.site == EXPERT_ACT:
            self._hook_experts(module, tap)
        elif place.method:
            self._patches.set(module, place.method, _around(getattr(module, place.method), place, tap))
        elif place.computed and spot.sae is None and not place.keyword:
            self._handles.append(module.register_forward_pre_hook(_computed(tap)))
        elif place.take == INPUT:
            hook = _before(tap, place.argument, place.keyword)
            self._handles.append(module.register_forward_pre_hook(hook, with_kwargs=True))
        else:
            self._handles.append(module.register_forward_hook(_after(tap, biased=place.take == BIASED)))

    def _hook_experts(self, mlp: Any, tap: _Tap) -> None:
        def show(rows: torch.Tensor) -> None:
            tap.show_inputs(rows, rows_of(mlp.token_dispatcher, alike=tap.generates))

        on_activations(mlp.experts, self._patches, lambda: tap.active, show)


class _Tap:
    def __init__(self, spot: Spot, demand: Demand, shard: Shard, position: Position) -> None:
        self._spot, self._demand, self._shard_of_training, self._position = spot, demand, shard, position

    @property
    def _shard(self) -> Shard:
        training = self._shard_of_training
        return training if self._position.request is None else training.generating

    def __call__(self, value: torch.Tensor, differentiable: torch.Tensor | None = None) -> torch.Tensor:
        """The value that the model goes on with. `differentiable`: a tensor of the same gradient, where autograd does
        not know the value."""
        if not self._position.enter() or value.dim() != len(self._spot.place.dims):
            return value  # the output of a chunk is a loss or, without labels, logits
        given = value
        if self._demand.changes:
            value = self._changed(value)
        if self._demand.readers and not self._position.recomputing:
            self._show(self._demand.readers, value, gradient=False)
        in_training = self._position.request is None
        if self._demand.gradient_readers and in_training and torch.is_grad_enabled():
            known = differentiable if value is given and differentiable is not None else value
            if known.requires_grad:
                known.register_hook(self._on_gradient(self._position.microbatch))
        return value

    @property
    def active(self) -> bool:
        return self._position.active

    @property
    def generates(self) -> bool:
        return self._position.request is not None

    def show_inputs(self, query: torch.Tensor, key: torch.Tensor) -> None:
        """Of a computed site."""
        position = self._position
        if not position.enter() or position.recomputing:
            return
        capture = Capture(
            self._spot,
            query.detach(),
            self._shard,
            position.step,
            position.microbatch,
            position.first_token,
            request=position.request,
            key=key.detach(),
        )
        for reader in self._demand.readers:
            reader(capture)

    def _changed(self, value: torch.Tensor) -> torch.Tensor:
        part = self._part(value)
        index = self._shard.index(self._spot.site, self._spot.place, part, self._position)
        new = part
        for change in self._demand.changes:
            new = change(new, index, self._spot, self._position)
        if new is part:
            return value
        half = self._spot.place.half
        if half is None:
            return torch.cat((new, value[..., part.shape[-1] :]), -1) if part is not value else new
        halves = list(value.chunk(2, dim=-1))
        halves[half] = new
        return torch.cat(halves, dim=-1)

    def _part(self, value: torch.Tensor) -> torch.Tensor:
        """What the site is of it: a generation's logits are without the vocabulary's padding."""
        half = self._spot.place.half
        if half is not None:
            return value.chunk(2, dim=-1)[half]
        if self._spot.site == TOKENS:
            return value.float()  # exact: no vocabulary has 2²⁴
        if self._spot.site == LOGITS and self._position.request is not None:
            return value[..., : self._shard.model.vocabulary]
        return value

    def _show(self, readers: Sequence[Reader], value: torch.Tensor, *, gradient: bool, microbatch: int = -1) -> None:
        position = self._position
        part = self._part(value.detach())
        if self._spot.site in WHOLE_HISTORY and position.first_token:
            part = part[position.first_token :]
        capture = Capture(
            self._spot,
            part,
            self._shard,
            position.step,
            position.microbatch if microbatch < 0 else microbatch,
            self._first_row(part),
            gradient,
            position.request,
        )
        for reader in readers:  # of a detached value: autograd has nothing to note
            reader(capture)

    def _first_row(self, value: torch.Tensor) -> int:
        """The position of its first token: a generation may ask for the logits of the last one alone."""
        if not self._position.end:
            return 0
        dims = self._spot.place.dims
        rows = next(value.shape[at] for at, names in enumerate(dims) if names[0] in ("token", "query"))
        return self._position.end - rows

    def _on_gradient(self, microbatch: int) -> Callable[[torch.Tensor], None]:
        datas = self._shard_of_training.at.data[1]

        def gradient_is_there(gradient: torch.Tensor) -> None:
            # Each data rank's loss is the mean over its own samples, and their gradients are averaged.
            gradient = gradient / datas if datas > 1 else gradient
            self._show(self._demand.gradient_readers, gradient, gradient=True, microbatch=microbatch)

        return gradient_is_there


def _computed(tap: _Tap) -> Callable[..., Any]:
    def hook(module: Any, args: tuple[Any, ...]) -> None:
        tap.show_inputs(args[0], args[1] if len(args) > 1 else module.weight)

    return hook


def _gathering(dispatcher: Any, method: Callable[..., Any], tap: _Tap) -> Callable[..., Any]:
    def wrapped(rows: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
        if tap.active:
            tap.show_inputs(rows, rows_of(dispatcher, alike=tap.generates))
        return method(rows, *args, **kwargs)

    return wrapped


def _before(tap: _Tap, argument: int, keyword: str) -> Callable[..., Any]:
    def hook(_: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        named = bool(keyword) and keyword in kwargs
        value = kwargs[keyword] if named else args[argument]
        new = tap(value)
        if new is value:
            return None
        if named:
            return args, {**kwargs, keyword: new}
        return (*args[:argument], new, *args[argument + 1 :]), kwargs

    return hook


def _after(tap: _Tap, *, biased: bool) -> Callable[..., Any]:
    def hook(_: Any, __: Any, output: Any) -> Any:
        if not isinstance(output, tuple):
            new = tap(output)
            return None if new is output else new
        value, *rest = output
        if biased and rest and rest[0] is not None:
            whole = value + rest[0]
            new = tap(whole, value)
            return None if new is whole else (new, None, *rest[1:])
        new = tap(value)
        return None if new is value else (new, *rest)

    return hook


def _around(method: Callable[..., Any], place: Place, tap: _Tap) -> Callable[..., Any]:
    def wrapped(value: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
        if place.take == INPUT:
            return method(tap(value), *args, **kwargs)
        output = method(value, *args, **kwargs)
        if not isinstance(output, tuple):
            return tap(output)
        new = _shown(output[place.argument], place, value, tap)
        return (*output[: place.argument], new, *output[place.argument + 1 :])

    return wrapped


def _shown(part: torch.Tensor, place: Place, given: torch.Tensor, tap: _Tap) -> torch.Tensor:
    """What the model goes on with in place of one of a method's outputs; `given` is its input."""
    rows = part.view(*given.shape[:2], -1) if place.flat else part
    if place.computed:
        tap(rows.to(given.dtype))
        return part
    new = tap(rows)
    return new.flatten(0, 1) if place.flat else new
