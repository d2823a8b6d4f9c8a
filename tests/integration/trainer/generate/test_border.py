"""A training run that generates at a step's border: the text is the checkpoint's, and the run is as without."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Self

import numpy as np
import pytest
import torch

from megatronapp.core.generation import Event, Finished, GenerationRequest, Sampling
from megatronapp.trainer import launch, random_states  # noqa: F401  (imported once, before the ranks are forked)
from megatronapp.trainer.generate.generator import Generator
from megatronapp.trainer.generate.resident import ResidentGenerator
from megatronapp.trainer.plugins.base import Plugin, PluginContext
from megatronapp.trainer.plugins.scan import ScanPlugin
from tests.integration.trainer.generate.models import LLAMA, TEXTS, answers, ids
from tests.integration.trainer.generate.ports import ScriptedPort
from tests.support.forked import run_forked
from tests.support.training import TINY, train

FLAGS = f"{TINY} --seq-length 64 --hidden-dropout 0.1 --attention-dropout 0.1 --train-iters 5"
REQUEST = GenerationRequest(prompts=TEXTS, max_new_tokens=6, sampling=Sampling(temperature=0.7), seed=2, id="a")
GRADIENTS = GenerationRequest(
    prompts=("He",), continuations=(" said",), max_new_tokens=0, input_gradients=True, id="gradients"
)
ENDLESS = replace(REQUEST, id="paused", paused=True)
TRACED = "--trace --trace-interval 1 --continuous-trace-iterations 1 --trace-granularity full"
AFTER = 2
"""The step after which the border is that the first one asks for."""
events: list[Event] = []
states: list[Any] = []


class States(Plugin):
    """Keeps the random states after each step."""

    name = "states"

    @classmethod
    def create(cls, args: argparse.Namespace, context: PluginContext) -> Self:
        return cls()

    def step_begin(self, step: int) -> None:
        states.append(plain(random_states.read()))


class Asked(Plugin):
    """Generates at a border what a port asks for."""

    name = "asked"

    @classmethod
    def create(cls, args: argparse.Namespace, context: PluginContext) -> Self:
        plugin = cls()
        plugin.context = context
        return plugin

    context: PluginContext

    def configure(self, config: Any) -> None:
        self.config = config

    def models(self, chunks: Sequence[torch.nn.Module]) -> None:
        context = self.context
        assert context.tokenizer is not None
        self.generator = Generator(chunks, self.config, context.tokenizer, context.max_positions, context.device)
        first = self.generator.ranks.is_first
        self.port = ScriptedPort([[REQUEST, GRADIENTS, ENDLESS]]) if first else None
        self.resident = ResidentGenerator(self.generator, self.port)

    def step_begin(self, step: int) -> None:
        if step == 1 and self.port is not None:
            self.context.request_border()

    def border(self, step: int) -> bool:
        assert step == AFTER
        with self.generator.ready():
            self.resident.serve_pending(most_seconds=1.5)
        if self.port is not None:
            events.extend(self.port.events)
        return False


def run(flags: str, plugins: tuple[type[Plugin], ...]) -> tuple[list[float], list[Event], list[Any]]:
    return train(flags, plugins=plugins).losses, events, states


def plain(value: Any) -> Any:
    """What can be compared, and sent through a pipe."""
    if isinstance(value, torch.Tensor):
        return value.numpy().tobytes()
    if isinstance(value, np.ndarray):
        return value.tobytes()
    if isinstance(value, dict):
        return {key: plain(each) for key, each in value.items()}
    return tuple(map(plain, value)) if isinstance(value, list | tuple) else value


@pytest.mark.parametrize(
    ("world_size", "flags"),
    [
        pytest.param(2, f"{LLAMA} --tensor-model-parallel-size 2 --sequence-parallel {TRACED}", marks=pytest.mark.long),
        pytest.param(
            2,
            "--pipeline-model-parallel-size 2 --num-virtual-stages-per-pipeline-rank 2 --bf16",
            marks=pytest.mark.long,
        ),
        pytest.param(
            2, "--use-distributed-optimizer --overlap-grad-reduce --overlap-param-gather", marks=pytest.mark.long
        ),
    ],
)
def test_text_at_a_border_is_the_checkpoints_and_leaves_the_run_as_it_was(
    world_size: int, flags: str, tmp_path: Path
) -> None:
    if TRACED in flags:
        flags += f" --trace-dir {tmp_path}/trace"
    flags = f"{FLAGS} {flags} --save-interval {AFTER} --save {tmp_path}"

    without = run_forked(world_size, run, f"{flags}/without", (ScanPlugin, States))
    generating = run_forked(world_size, run, f"{flags}/with", (ScanPlugin, States, Asked))

    for (losses, _, before), (losses_too, _, after) in zip(without, generating, strict=True):
        assert losses_too == losses
        assert after == before
        assert len({str(each) for each in before}) == len(before) == 5  # dropout draws in each step
    found = generating[0][1]
    ended = {event.request: event.reason for event in found if isinstance(event, Finished)}
    assert ended == {"a": "done", "gradients": "done", "paused": "cancelled"}
    [alone] = answers(tmp_path / "with" / f"iter_{AFTER:07d}", [REQUEST])
    assert ids([event for event in found if event.request == "a"]) == ids(alone)
