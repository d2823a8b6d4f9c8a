"""Random numbers of a place: those of the published generator, and alike however the tensor is divided."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from megatronapp.trainer.plugins.scope.perturb.philox import MASK, Key, normal, philox, uniform, words_at


@pytest.mark.parametrize(
    ("counter", "key", "expected"),
    [
        ((0, 0, 0, 0), (0, 0), (0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8)),
        ((MASK,) * 4, (MASK, MASK), (0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD)),
        (
            (0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344),
            (0xA4093822, 0x299F31D0),
            (0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1),
        ),
    ],
)
def test_known_answers_of_random123(
    counter: tuple[int, int, int, int], key: tuple[int, int], expected: tuple[int, ...]
) -> None:
    c0, c1, c2, c3 = (torch.tensor(word) for word in counter)

    words = philox((c0, c1, c2, c3), Key(*key))

    assert tuple(int(word) for word in words) == expected


@given(st.integers(1, 40), st.integers(1, 40), st.integers(0, 1 << 40), st.integers(0, 1 << 62))
@settings(max_examples=30, deadline=None)
def test_a_part_draws_what_the_whole_draws_there(rows: int, columns: int, first: int, seed: int) -> None:
    place = torch.arange(first, first + rows * columns).view(rows, columns)
    sample = torch.arange(rows).view(rows, 1)
    key = Key.of(seed, "mlp.out", 3)

    whole = words_at(place, sample, 7, key)
    part = words_at(place[rows // 2 :, : columns // 2 + 1], sample[rows // 2 :], 7, key)

    for word, of_part in zip(whole, part, strict=True):
        assert torch.equal(word[rows // 2 :, : columns // 2 + 1], of_part)


def test_normal_and_uniform_numbers_are_distributed_as_they_should_be() -> None:
    words = words_at(torch.arange(1 << 16), torch.zeros(1 << 16, dtype=torch.int64), 1, Key.of(0, "x"))

    values, flat = normal(words[0], words[1]), uniform(words[2])

    assert float(values.mean()) == pytest.approx(0, abs=0.02)
    assert float(values.std()) == pytest.approx(1, abs=0.02)
    assert float((values.abs() < 1).double().mean()) == pytest.approx(math.erf(1 / math.sqrt(2)), abs=0.01)
    assert 0 < float(flat.min()) < 1e-3
    assert 1 - 1e-3 < float(flat.max()) < 1
    assert float(flat.mean()) == pytest.approx(0.5, abs=0.01)


def test_seed_site_layer_and_step_each_give_other_numbers() -> None:
    place, sample = torch.arange(64), torch.zeros(64, dtype=torch.int64)

    def first(step: int, *names: object, seed: int = 0) -> torch.Tensor:
        return words_at(place, sample, step, Key.of(seed, *names))[0]

    drawn = [first(1, "a", 1), first(1, "a", 2), first(1, "b", 1), first(2, "a", 1), first(1, "a", 1, seed=1)]

    assert len({tuple(words.tolist()) for words in drawn}) == len(drawn)
    assert torch.equal(first(1, "a", 1), first(1, "a", 1))
