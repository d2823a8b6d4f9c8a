"""Gradient × input: in every layout what plain autograd says in one process."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from megatronapp.core.generation import GenerationRequest, InputGradients
from megatronapp.trainer import launch  # noqa: F401  (imported once, before the ranks are forked)
from megatronapp.trainer.generate.arguments import Source
from megatronapp.trainer.generate.loaded import loaded
from tests.integration.trainer.generate.models import LLAMA, MOE, answers, ids, log_probabilities, trained
from tests.support.forked import run_forked

pytestmark = pytest.mark.long
TOLERANCE = 1e-5
"""Of the largest reference, float32."""
PROMPT, ANSWER = "Once upon a", " time"
REQUEST = GenerationRequest(
    prompts=(PROMPT,), continuations=(ANSWER,), max_new_tokens=0, input_gradients=True, stop_at_end_of_document=False
)
TP2, PP2 = {"tensor_model_parallel_size": 2}, {"pipeline_model_parallel_size": 2}
VPP2 = {**PP2, "num_virtual_stages_per_pipeline_rank": 2}
MODELS = {"gpt": ("", 1), "llama": (f"{LLAMA} --tensor-model-parallel-size 2 --sequence-parallel", 2), "moe": (MOE, 1)}
FolderOf = Callable[[str], Path]
Reference = tuple[list[float], list[float]]
"""Gradient × input of each token fed, log-probability of each token of the answer."""


def plain_autograd(folder: Path) -> Reference:
    """For one process: weights take part, the embedding is given to the model from outside."""
    with loaded(Source(folder=folder)) as generator, torch.enable_grad():
        [chunk] = generator.engine.stages.chunks
        model: Any = chunk
        given, answer = list(PROMPT.encode()), list(ANSWER.encode())
        tokens = torch.tensor([[*given, *answer[:-1]]])
        positions = torch.arange(tokens.shape[1])[None]
        embedded = model.embedding(tokens, positions).detach().requires_grad_()
        logits = model(tokens, positions, None, decoder_input=embedded, runtime_gather_output=True)
        scores = generator.engine.real(logits)[0].double().log_softmax(-1)
        told = scores[range(len(given) - 1, tokens.shape[1]), answer]
        told.sum().backward()
        assert embedded.grad is not None
        return (embedded * embedded.grad).sum(-1)[:, 0].tolist(), told.tolist()


@pytest.fixture(scope="module")
def folder_of(tmp_path_factory: pytest.TempPathFactory) -> FolderOf:
    return cache(lambda model: trained(tmp_path_factory.mktemp(model), *MODELS[model]))


@pytest.fixture(scope="module")
def reference(folder_of: FolderOf) -> Callable[[str], Reference]:
    return cache(lambda model: run_forked(1, plain_autograd, folder_of(model))[0])


@pytest.mark.parametrize(
    ("model", "world_size", "layout"),
    [
        ("gpt", 1, {}),
        pytest.param("gpt", 2, TP2, marks=pytest.mark.exhaustive),
        pytest.param("gpt", 2, PP2, marks=pytest.mark.exhaustive),
        pytest.param("llama", 2, TP2, marks=pytest.mark.exhaustive),
        ("llama", 2, VPP2),
        ("llama", 4, {**TP2, **PP2}),
        ("moe", 2, TP2),
    ],
)
def test_every_layout_gives_what_plain_autograd_gives(
    model: str,
    world_size: int,
    layout: dict[str, int],
    folder_of: FolderOf,
    reference: Callable[[str], Reference],
) -> None:
    [events] = answers(folder_of(model), [REQUEST], world_size, **layout)

    values, scores = reference(model)
    [found] = [event.values for event in events if isinstance(event, InputGradients)]
    assert np.abs(np.subtract(found, values)).max() <= TOLERANCE * np.abs(values).max()
    assert list(log_probabilities(events).values()) == pytest.approx(scores, abs=1e-5)
    assert ids(events)[0] == list(ANSWER.encode())
