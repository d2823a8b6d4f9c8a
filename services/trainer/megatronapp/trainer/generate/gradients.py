"""How what a model says follows its input: a forward pass and its backward over all stages, to the embeddings alone.

No weight takes part: none requires a gradient meanwhile, so that no buffer of a training is written to and none of its
hooks fires. Gradients go back through the stages as values came, chunk after chunk.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import torch

from megatronapp.trainer.generate.parallel import Stages

Score = Callable[[torch.Tensor], torch.Tensor]
"""A scalar of the logits [rows, count, vocabulary with padding], float32."""


@dataclass(frozen=True)
class Differentiated:
    """Each on the ranks that have it: logits on those of the last stage, the embeddings [count, rows, hidden] and their
    gradient on those of the first."""

    logits: torch.Tensor | None = None
    embedded: torch.Tensor | None = None
    gradient: torch.Tensor | None = None


@dataclass
class _Through:
    """A chunk's part of the graph."""

    given: torch.Tensor
    output: torch.Tensor


def differentiated(stages: Stages, tokens: torch.Tensor, score: Score) -> Differentiated:
    """Of `tokens` [rows, count], computed without a cache. All ranks call it together, in `generating`."""
    with _frozen(stages.chunks), torch.enable_grad():
        passed = _forward(stages, tokens.to(stages.device))
        last = passed[-1].output
        logits = last.detach().float() if stages.is_last(len(passed) - 1) else None
        gradient = _backward(stages, passed, tokens.shape, score)
    if not stages.is_first(0):
        return Differentiated(logits)
    return Differentiated(logits, passed[0].given.detach(), gradient)


def _forward(stages: Stages, tokens: torch.Tensor) -> list[_Through]:
    rows, count = tokens.shape
    positions = torch.arange(count, device=stages.device).expand(rows, count)
    passed = []
    for index, chunk in enumerate(stages.chunks):
        given: list[torch.Tensor] = []
        if stages.is_first(index):
            with _leaf_of(chunk.embedding, given):  # type: ignore[arg-type]
                output = chunk(tokens, positions, None, runtime_gather_output=True)
        else:
            given.append(stages.receive(count, rows).requires_grad_())
            chunk.set_input_tensor(given[0])  # type: ignore[operator]
            output = chunk(tokens, positions, None, runtime_gather_output=True)
        passed.append(_Through(given[0], output))
        if not stages.is_last(index):
            stages.send(output.detach())
    return passed


def _backward(stages: Stages, passed: Sequence[_Through], shape: torch.Size, score: Score) -> torch.Tensor:
    """The gradient of the first chunk's input."""
    rows, count = shape
    for index in reversed(range(len(passed))):
        part = passed[index]
        if stages.is_last(index):
            [gradient] = torch.autograd.grad(score(part.output.float()), part.given)
        else:
            coming = stages.receive(count, rows, backward=True)
            [gradient] = torch.autograd.grad(part.output, part.given, coming)
        if not stages.is_first(index):
            stages.send(gradient, backward=True)
    return gradient


@contextmanager
def _leaf_of(embedding: torch.nn.Module, found: list[torch.Tensor]) -> Iterator[None]:
    """What the embedding gives is where the graph begins, and in `found`."""

    def begin(_: torch.nn.Module, __: tuple[torch.Tensor, ...], output: torch.Tensor) -> torch.Tensor:
        found.append(output.detach().requires_grad_())
        return found[0]

    handle = embedding.register_forward_hook(begin)
    try:
        yield
    finally:
        handle.remove()


@contextmanager
def _frozen(chunks: Sequence[torch.nn.Module]) -> Iterator[None]:
    trained = [weight for chunk in chunks for weight in chunk.parameters() if weight.requires_grad]
    for weight in trained:
        weight.requires_grad_(False)
    try:
        yield
    finally:
        for weight in trained:
            weight.requires_grad_(True)
