"""What disturbances make of values and of gradients."""

from __future__ import annotations

import pytest
import torch

from megatronapp.core.errors import DataError
from megatronapp.trainer.plugins.scope.perturb import kinds
from megatronapp.trainer.plugins.scope.perturb.philox import Key, Words, words_at

VALUES = torch.linspace(-3, 5, 4096)


def draw() -> Words:
    place = torch.arange(VALUES.numel())
    return words_at(place, torch.zeros_like(place), 1, Key.of(11, "site"))


def changed(kind: str, coefficient: float, bits: str = "", values: torch.Tensor = VALUES) -> torch.Tensor:
    return kinds.apply(kind, values, coefficient, bits, draw)


def test_noise1_adds_a_normal_number_of_that_deviation() -> None:
    noise = changed("noise1", 0.25) - VALUES

    assert float(noise.std()) == pytest.approx(0.25, rel=0.05)
    assert float(noise.mean()) == pytest.approx(0, abs=0.02)


def test_noise2_multiplies_by_a_uniform_number_of_that_extent() -> None:
    factor = changed("noise2", 0.5) / VALUES

    assert 0.5 <= float(factor.min()) < 0.51
    assert 1.49 < float(factor.max()) <= 1.5


@pytest.mark.parametrize(
    ("kind", "coefficient", "expected"),
    [("constant", 2.0, VALUES + 2), ("scale", -2.0, VALUES * -2), ("zero", 0.0, VALUES * 0), ("stuck_at", 7.0, 7.0)],
)
def test_kinds_without_randomness(kind: str, coefficient: float, expected: torch.Tensor | float) -> None:
    assert torch.equal(changed(kind, coefficient), torch.as_tensor(expected).expand_as(VALUES))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize(("bits", "count"), [("sign", 1), ("exponent", 8), ("mantissa", 23), ("3", 1), ("", 32)])
def test_bit_flips_hit_that_share_in_one_bit_each(dtype: torch.dtype, bits: str, count: int) -> None:
    values = VALUES.to(dtype)

    flipped = changed("bit_flip", 0.25, bits, values)

    word = kinds.WORDS_OF[dtype]
    difference = values.view(word) ^ flipped.view(word)
    hit = difference[difference != 0].long() & (1 << 8 * dtype.itemsize) - 1
    assert len(hit) == pytest.approx(0.25 * len(values), rel=0.15)
    assert torch.equal(hit & (hit - 1), torch.zeros_like(hit))  # one bit each
    field = kinds.BitField.of(bits, dtype)
    assert not (hit & ~field.mask).any()
    if dtype is torch.float32:
        assert field.count == count


def test_bits_stuck_at_one_and_at_zero() -> None:
    assert torch.equal(changed("stuck_at", 1.0, "sign"), -VALUES.abs())
    assert torch.equal(changed("stuck_at", 0.0, "sign"), VALUES.abs())


def test_a_fault_of_the_hardware_leaves_the_gradient_as_it_is() -> None:
    values = VALUES.clone().requires_grad_()

    kinds.apply("bit_flip", values, 1.0, "exponent", draw).sum().backward()  # type: ignore[no-untyped-call]

    assert values.grad is not None
    assert torch.equal(values.grad, torch.ones_like(VALUES))


@pytest.mark.parametrize(
    ("kind", "coefficient", "bits"),
    [
        ("bit_flip", 0.0, ""),
        ("bit_flip", 1.5, ""),
        ("noise2", -1.0, ""),
        ("stuck_at", 2.0, "sign"),
        ("bit_flip", 1, "64"),
    ],
)
def test_what_makes_no_sense_is_refused(kind: str, coefficient: float, bits: str) -> None:
    with pytest.raises(DataError):
        kinds.check(kind, coefficient, bits)
