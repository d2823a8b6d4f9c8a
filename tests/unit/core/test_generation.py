"""Requests to a model: what means nothing, and what a model does not take."""

from __future__ import annotations

from typing import Any

import pytest

from megatronapp.core.errors import UsageError
from megatronapp.core.generation import Control, GenerationRequest, Limits, Sampling, branch

LIMITS = Limits(vocabulary=100, max_positions=16, max_rows=3, max_cached=40)


@pytest.mark.parametrize(
    ("kind", "values", "says"),
    [
        (Sampling, {"temperature": -1.0}, "temperature -1.0 must be 0 to 100"),
        (Sampling, {"temperature": float("nan")}, "temperature nan"),
        (Sampling, {"top_k": -1}, "top_k -1"),
        (Sampling, {"top_p": 0.0}, "top_p 0.0 must be above 0"),
        (Sampling, {"top_p": 1.5}, "top_p 1.5"),
        (Sampling, {"top_p_decay": 0.0}, "top_p_decay 0.0"),
        (Sampling, {"top_p": 0.5, "top_p_bound": 0.6}, "top_p_bound 0.6 must be 0 to top_p"),
        (GenerationRequest, {"prompts": ()}, "no prompts"),
        (GenerationRequest, {"continuations": ("a", "b")}, "2 continuations for 1 prompts"),
        (GenerationRequest, {"max_new_tokens": -1}, "max_new_tokens -1"),
        (GenerationRequest, {"max_new_tokens": 0}, "max_new_tokens 0 needs prompt_log_probabilities"),
        (GenerationRequest, {"seed": -1}, "seed -1"),
        (GenerationRequest, {"top_candidates": -1}, "top_candidates -1"),
        (GenerationRequest, {"stop_words": ("a",) * 17}, "17 stop words: at most 16"),
        (GenerationRequest, {"stop_words": ("",)}, "a stop word has 1 to 256 characters"),
        (GenerationRequest, {"stop_tokens": tuple(range(65))}, "65 stop tokens: at most 64"),
        (GenerationRequest, {"beam_width": -2}, "beam_width -2"),
        (GenerationRequest, {"beam_width": 2, "logits": True}, "beam search gives no logits"),
        (GenerationRequest, {"beam_width": 2, "length_penalty": float("inf")}, "length_penalty inf"),
        (Control, {"action": "step", "request": "a", "steps": 0}, "steps 0 must be 1 or more"),
    ],
)
def test_what_means_nothing_is_refused_in_one_line(kind: Any, values: dict[str, Any], says: str) -> None:
    given = {"prompts": ("a",)} | values if kind is GenerationRequest else values

    with pytest.raises(UsageError, match=says) as caught:
        kind(**given)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("values", "says"),
    [
        ({"prompts": ("a",) * 4}, "4 prompts: at most 3"),
        ({"prompts": ("a" * 2000,)}, "a prompt of 2000 characters: at most 1024"),
        ({"top_candidates": 101}, "top_candidates 101 must be at most 100"),
        ({"beam_width": 51}, "beam_width 51 must be at most 50"),
        ({"stop_tokens": (100,)}, "stop token 100: ids of this model lie from 0 to 99"),
        ({"stop_tokens": (-1,)}, "stop token -1"),
    ],
)
def test_what_a_model_does_not_take_is_refused(values: dict[str, Any], says: str) -> None:
    with pytest.raises(UsageError, match=says):
        LIMITS.check(GenerationRequest(**({"prompts": ("a",)} | values)))


def test_lengths_and_memory_are_limited() -> None:
    LIMITS.check_length(0, 10, 6)
    LIMITS.check_cache(2, 20)

    with pytest.raises(UsageError, match="prompt 1 has 10 tokens and asks for 7 more: this model takes 16 in all"):
        LIMITS.check_length(1, 10, 7)
    with pytest.raises(UsageError, match="prompt 2 is empty"):
        LIMITS.check_length(2, 0, 1)
    with pytest.raises(UsageError, match="3 rows of 14 tokens"):
        LIMITS.check_cache(3, 14)


def test_logits_are_limited_by_what_a_step_has_of_them() -> None:
    request = GenerationRequest(prompts=("a", "b", "c"), logits=True)

    with pytest.raises(UsageError, match="logits of 3 prompts: at most 2 at a time"):
        Limits(vocabulary=100, max_positions=16, max_logits=250).check(request)


def test_a_branch_is_its_row_alone_with_another_token() -> None:
    request = GenerationRequest(prompts=("a", "b"), id="first", seed=7, add_bos=True, max_new_tokens=9)

    other = branch(request, 1, (1, 2, 3), 4, new_id="second")

    assert (other.id, other.prompts, other.seed) == ("second", ((1, 2, 3, 4),), 8)
    assert (other.add_bos, other.reuse_prefix, other.max_new_tokens) == (False, True, 9)
