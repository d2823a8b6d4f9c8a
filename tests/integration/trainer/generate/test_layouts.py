"""The same text under every layout, with a cache and without, alone and among others."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from shutil import copytree

import pytest
import torch

from megatronapp.core.generation import Event, GenerationRequest, Sampling, branch
from megatronapp.trainer import launch  # noqa: F401  (imported once, before the ranks are forked)
from megatronapp.trainer.checkpoint_folder import COMPLETE, RECIPE
from megatronapp.trainer.data.tokenizers import ByteTokenizer
from tests.integration.trainer.generate.models import (
    GREEDY,
    LLAMA,
    MOE,
    TEXTS,
    Plain,
    answers,
    asked_and_computed,
    computed,
    ends,
    ids,
    log_probabilities,
    rows,
    tokens_of,
    trained,
)
from tests.support.forked import run_forked

MODELS = {
    "gpt": ("", 1),
    "llama": (f"{LLAMA} --tensor-model-parallel-size 2 --sequence-parallel", 2),
    "moe": (MOE, 1),
    "alibi": ("--position-embedding-type alibi --window-size 8,0 --squared-relu", 1),
}
ALL = GenerationRequest(prompts=TEXTS, max_new_tokens=12, sampling=GREEDY, stop_at_end_of_document=False)
REQUESTS = {
    "greedy": ALL,
    "sampled": replace(ALL, sampling=Sampling(temperature=0.8, top_k=50, top_p=0.9, top_p_decay=0.95), seed=5),
    "beams": replace(ALL, prompts=TEXTS[:2], beam_width=3, max_new_tokens=6),
    "scored": replace(ALL, prompt_log_probabilities=True, top_candidates=4, max_new_tokens=3),
}


TP2, PP2 = {"tensor_model_parallel_size": 2}, {"pipeline_model_parallel_size": 2}
VPP2 = {**PP2, "num_virtual_stages_per_pipeline_rank": 2}


slower = pytest.mark.long
"""Layouts that differ from another one here in one thing alone."""
FolderOf = Callable[[str], Path]
Alone = Callable[[str], tuple[list[list[Event]], Plain]]


@pytest.fixture(scope="module")
def folder_of(tmp_path_factory: pytest.TempPathFactory) -> FolderOf:
    """A model's checkpoint, trained when it is first asked for."""
    return cache(lambda model: trained(tmp_path_factory.mktemp(model), *MODELS[model]))


@pytest.fixture(scope="module")
def alone(folder_of: FolderOf) -> Alone:
    """What one process answers, and what plain forward passes say of the last request's rows."""
    requests = list(REQUESTS.values())
    return cache(lambda model: run_forked(1, asked_and_computed, folder_of(model), requests)[0])


@pytest.mark.parametrize(
    ("model", "layout"),
    [
        pytest.param("gpt", PP2, marks=slower),
        pytest.param("gpt", TP2, marks=slower),
        pytest.param("llama", TP2, marks=slower),
        ("llama", VPP2),
        pytest.param("moe", TP2, marks=slower),
    ],
)
def test_every_layout_gives_the_text_that_one_process_gives(
    model: str, layout: dict[str, int], folder_of: FolderOf, alone: Alone
) -> None:
    split = answers(folder_of(model), list(REQUESTS.values()), 2, **layout)

    for one, two in zip(alone(model)[0], split, strict=True):
        assert ids(two) == ids(one)
        assert {row: end.text for row, end in ends(two).items()} == {row: end.text for row, end in ends(one).items()}
        for row in range(len(TEXTS)):
            assert log_probabilities(two, row) == pytest.approx(log_probabilities(one, row), abs=1e-4)


@pytest.mark.parametrize("model", ["llama", *(pytest.param(model, marks=slower) for model in ("gpt", "moe", "alibi"))])
def test_with_a_cache_it_is_what_plain_forward_passes_give(model: str, alone: Alone) -> None:
    answered, references = alone(model)
    events = answered[-1]

    for row, (sequence, reference) in enumerate(zip(rows(REQUESTS["scored"], events), references, strict=True)):
        expected = {at: reference[at - 1][sequence[at]] for at in range(1, len(sequence))}
        assert log_probabilities(events, row) == pytest.approx(expected, abs=1e-5)
        for token in tokens_of(events, row):
            best = sorted(reference[token.position - 1], reverse=True)[:4]
            assert [each.log_probability for each in token.candidates] == pytest.approx(best, abs=1e-5)
            assert token.origin == "prompt" or token.id == token.candidates[0].id


@pytest.mark.skipif(find_spec("transformer_engine") is not None, reason="Transformer Engine is installed")
def test_text_of_a_model_of_transformer_engine_is_generated_where_it_is_not_installed(
    folder_of: FolderOf, tmp_path: Path
) -> None:
    folder = copytree(folder_of("llama"), tmp_path / "theirs")
    [file] = folder.glob(f"iter_*/{RECIPE}")
    recipe = json.loads(file.read_text())
    recipe["settings"]["operation"] |= {"transformer_impl": "transformer_engine", "attention_backend": "fused"}
    recipe["settings"]["training"] |= {"fp8_format": "hybrid"}
    recipe["settings"]["forward"] |= {"bf16": True}
    file.write_text(json.dumps(recipe))
    complete = json.loads(file.with_name(COMPLETE).read_text())
    complete["files"][RECIPE] = file.stat().st_size
    file.with_name(COMPLETE).write_text(json.dumps(complete))

    [events] = answers(folder, [ALL])

    assert {len(added) for added in ids(events).values()} == {ALL.max_new_tokens}


def test_each_of_many_prompts_comes_out_as_if_it_were_alone(folder_of: FolderOf) -> None:
    generator = torch.Generator().manual_seed(1)
    prompts = tuple(
        tuple(torch.randint(0, 256, (1 + int(size),), generator=generator).tolist())
        for size in torch.randint(0, 24, (128,), generator=generator)
    )
    request = GenerationRequest(prompts=prompts, max_new_tokens=4, seed=3)
    separate = [replace(request, prompts=(prompt,), seed=3 + row) for row, prompt in enumerate(prompts)]

    together, *each = answers(folder_of("llama"), [request, *separate])

    assert [ids(together)[row] for row in range(128)] == [ids(events)[0] for events in each]
    assert len({len(prompt) for prompt in prompts}) > 15


def test_teacher_forcing_and_branches_compute_what_a_fresh_request_does(folder_of: FolderOf) -> None:
    texts = TEXTS[:3]
    first = replace(ALL, prompts=texts, sampling=Sampling(), seed=11)
    [events] = answers(folder_of("llama"), [first])
    written = rows(first, events)
    cut = len(texts[1]) + 4
    other = branch(first, 1, tuple(written[1][:cut]), 65, new_id="branch")
    taught = replace(first, continuations=tuple(tuple(ids(events)[row]) for row in range(3)), max_new_tokens=2)
    requests = [first, other, replace(other, reuse_prefix=False), taught, replace(taught, reuse_prefix=True)]

    _, branched, anew, scored, scored_again = answers(folder_of("llama"), requests)

    assert ids(branched) == ids(anew)
    assert log_probabilities(branched) == pytest.approx(log_probabilities(anew), abs=1e-5)
    for row in range(3):
        drawn = log_probabilities(events, row)
        assert ids(scored)[row][: first.max_new_tokens] == ids(events)[row]
        for again in (scored, scored_again):
            found = log_probabilities(again, row)
            assert {at: found[at] for at in drawn} == pytest.approx(drawn, abs=1e-5)


def test_beams_are_those_of_brute_force(folder_of: FolderOf) -> None:
    """Two tokens deep: the best of all pairs, each scored by a plain forward pass."""
    vocabulary, prompt = ByteTokenizer.vocab_size, "He said"
    request = GenerationRequest(
        prompts=(prompt,), max_new_tokens=2, beam_width=64, length_penalty=0.7, stop_at_end_of_document=False
    )
    [events] = answers(folder_of("llama"), [request])
    sequences = [[*prompt.encode(), token] for token in range(vocabulary)]

    [references] = run_forked(1, computed, folder_of("llama"), sequences)

    first = references[0][len(prompt) - 1]
    pairs = {
        (token, following): first[token] + reference[-1][following]
        for token, reference in enumerate(references)
        for following in range(vocabulary)
    }
    best = sorted(pairs, key=lambda pair: -pairs[pair])[:10]
    beams = ends(events)[0].beams[:10]
    assert [beam.ids for beam in beams] == best
    assert [beam.log_probability for beam in beams] == pytest.approx([pairs[pair] for pair in best], abs=1e-5)
    assert [beam.score for beam in beams] == pytest.approx([pairs[pair] / 2**0.7 for pair in best], abs=1e-5)
