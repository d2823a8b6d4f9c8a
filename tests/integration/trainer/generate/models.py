"""Checkpoints to generate with, and what a rank does with one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from megatronapp.core.generation import Event, GenerationRequest, RowFinished, Sampling, Stepped, Token
from megatronapp.trainer.config import ParallelConfig
from megatronapp.trainer.generate.arguments import Source
from megatronapp.trainer.generate.generator import Generator
from megatronapp.trainer.generate.loaded import loaded
from tests.support.forked import run_forked
from tests.support.training import TINY, train

Plain = list[list[list[float]]]
STEPS = "--train-iters 12"
LLAMA = (
    "--position-embedding-type rope --normalization RMSNorm --swiglu --group-query-attention --num-query-groups 2 "
    "--untie-embeddings-and-output-weights --disable-bias-linear"
)
MOE = (
    "--num-experts 4 --moe-shared-expert-intermediate-size 32 --geglu --disable-bias-linear "
    "--position-embedding-type rope"
)
GREEDY = Sampling(temperature=0)
TEXTS = ("Once upon a time", "He", "the quick brown fox jumps", "123", "Zwölf")
"""Of unequal length; some share a beginning with none."""


def trained(folder: Path, flags: str = "", world_size: int = 1) -> Path:
    """A checkpoint of the tiny model."""
    flags = f"{TINY} --seq-length 64 {STEPS} --lr 1e-2 {flags} --save {folder}"
    run_forked(world_size, train, flags)
    return folder


def asked(folder: Path, requests: Sequence[GenerationRequest], layout: dict[str, int]) -> list[list[Event]]:
    """For a rank: the events of each request."""
    with loaded(Source(folder=folder, parallel=ParallelConfig(**layout))) as generator:
        return [list(generator.generate(request)) for request in requests]


def answers(
    folder: Path, requests: Sequence[GenerationRequest], world_size: int = 1, **layout: int
) -> list[list[Event]]:
    """The first rank's; all ranks' events are the same."""
    ranks = run_forked(world_size, asked, folder, requests, layout)
    assert all(without_logits(rank) == without_logits(ranks[0]) for rank in ranks)
    return ranks[0]


def without_logits(answers: Sequence[Sequence[Event]]) -> list[list[Any]]:
    return [
        [
            replace(event, tokens=tuple(replace(token, logits=b"") for token in event.tokens))
            if isinstance(event, Stepped)
            else event
            for event in events
        ]
        for events in answers
    ]


def ids(events: Sequence[Event]) -> dict[int, list[int]]:
    """What each row adds to its prompt."""
    found: dict[int, list[int]] = {}
    for event in events:
        if isinstance(event, Stepped):
            for token in event.tokens:
                if token.origin != "prompt":
                    found.setdefault(token.row, []).append(token.id)
    return found


def tokens_of(events: Sequence[Event], row: int) -> list[Token]:
    return [token for event in events if isinstance(event, Stepped) for token in event.tokens if token.row == row]


def log_probabilities(events: Sequence[Event], row: int = 0) -> dict[int, float | None]:
    """By position."""
    return {token.position: token.log_probability for token in tokens_of(events, row)}


def ends(events: Sequence[Event]) -> dict[int, RowFinished]:
    return {event.row: event for event in events if isinstance(event, RowFinished)}


def rows(request: GenerationRequest, events: Sequence[Event]) -> list[list[int]]:
    """All tokens of each row, of prompts that the byte tokenizer reads."""
    added = ids(events)
    given = [list(prompt.encode() if isinstance(prompt, str) else prompt) for prompt in request.prompts]
    return [[*prompt, *added.get(row, [])] for row, prompt in enumerate(given)]


def asked_and_computed(folder: Path, requests: Sequence[GenerationRequest]) -> tuple[list[list[Event]], Plain]:
    """For one process: the events of each request, and of the last one's rows what plain forward passes say."""
    with loaded(Source(folder=folder)) as generator:
        events = [list(generator.generate(request)) for request in requests]
        return events, plain(generator, rows(requests[-1], events[-1]))


def computed(folder: Path, sequences: Sequence[Sequence[int]]) -> Plain:
    with loaded(Source(folder=folder)) as generator:
        return plain(generator, sequences)


def plain(generator: Generator, sequences: Sequence[Sequence[int]]) -> Plain:
    """Log-probabilities of all ids after each token of each row, by a forward pass without a cache."""
    found = []
    for sequence in sequences:
        logits = generator.engine.stages.forward(torch.tensor([list(sequence)]), None)
        assert logits is not None
        found.append(generator.engine.real(logits)[0].double().log_softmax(-1).tolist())
    return found
