"""What a quantiser loses is bounded, and what it must keep survives."""

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from megatronapp.core.errors import DataError
from megatronapp.core.scope.frame import Codec, Flag, Section, pack, unpack
from megatronapp.core.scope.quantize import FORMATS, Values, decode, encode, exact

Floats = npt.NDArray[np.float32]
OVERFLOWING = {"f16": 65000, "bf16": 3.38e38}
tensors = arrays.arrays(
    np.float32,
    arrays.array_shapes(max_dims=4, max_side=5),
    elements=st.floats(width=32) | st.sampled_from([np.nan, np.inf, -np.inf, 0.0]),
)


def through(values: Values, name: str) -> Values:
    return decode(unpack(pack(encode(values, name))))


@given(array=tensors, name=st.sampled_from(sorted(FORMATS)), data=st.data())
def test_states_survive_every_format(array: Floats, name: str, data: st.DataObject) -> None:
    choice = data.draw(arrays.arrays(np.int8, array.shape, elements=st.integers(0, 3)))
    values = Values(array, choice == 1, choice == 2)

    back = through(values, name)

    absent = (choice == 1) | (choice == 2)
    assert np.array_equal(values.masked, np.zeros_like(absent) if back.masked is None else back.masked)
    assert np.array_equal(values.missing, np.zeros_like(absent) if back.missing is None else back.missing)
    assert np.array_equal(np.isnan(array) & ~absent, np.isnan(back.array) & ~absent)
    for infinity in (np.inf, -np.inf):
        overflown = name in OVERFLOWING and bool((np.abs(array) > OVERFLOWING[name]).any())
        assert overflown or np.array_equal((array == infinity) & ~absent, (back.array == infinity) & ~absent)


@given(array=tensors)
def test_f32_keeps_every_value(array: Floats) -> None:
    assert np.array_equal(through(Values(array), "f32").array, array, equal_nan=True)


@pytest.mark.parametrize("shape", [(), (0, 3), (5,), (2, 3, 4)])
def test_what_a_rank_sends_is_its_values_and_a_view_of_those_that_are_numbers(shape: tuple[int, ...]) -> None:
    array = np.random.default_rng(1).standard_normal(shape).astype(np.float32)
    turned = array.T

    view, copy = exact(Values(array), finite=True), exact(Values(array))

    assert bytes(view.payload) == bytes(copy.payload) == array.tobytes()
    assert np.shares_memory(np.frombuffer(view.payload, "<f4"), array) is bool(array.size)
    assert bytes(exact(Values(turned), finite=True).payload) == turned.tobytes()


@given(array=arrays.arrays(np.float32, (3, 7), elements=st.floats(-1e6, 1e6, width=32)))
def test_asinh_errs_by_half_a_code_at_most(array: Floats) -> None:
    frame = encode(Values(array), "asinh")

    back = decode(frame).array.astype(float)

    distance = np.abs(np.arcsinh(back / frame.bias) - np.arcsinh(array.astype(float) / frame.bias))
    assert distance.max() <= 0.5001 * frame.scale + 1e-6


@given(array=arrays.arrays(np.float32, (4, 6), elements=st.floats(-1e6, 1e6, width=32)))
@pytest.mark.parametrize(("name", "axis"), [("affine", None), ("affine_row", 1), ("affine_column", 0)])
def test_affine_errs_by_half_a_code_of_its_range(name: str, axis: int | None, array: Floats) -> None:
    back = through(Values(array), name).array

    spread = array.max(axis, keepdims=True).astype(float) - array.min(axis, keepdims=True)
    assert (np.abs(back - array.astype(float)) <= spread * 0.502 / 250 + 1e-6 * np.abs(array).max() + 1e-30).all()


def test_few_outliers_leave_the_others_their_levels_and_come_back_exactly() -> None:
    array = np.random.default_rng(0).normal(size=(64, 256)).astype(np.float32)
    array[:, 7] *= 60
    array[3, 9] = 4000.0
    values = Values(array)

    asinh, affine = (through(values, name).array for name in ("asinh", "affine"))

    bulk = np.abs(array) < 3
    assert np.sqrt(np.mean((asinh - array)[bulk] ** 2)) < 0.05 * array[bulk].std()
    assert np.sqrt(np.mean((affine - array)[bulk] ** 2)) > array[bulk].std()
    assert asinh[3, 9] == 4000.0


def test_sqrt_keeps_small_probabilities_apart() -> None:
    probabilities = np.array([1.0, 0.5, 1e-3, 1e-4, 0.0], np.float32)

    back = through(Values(probabilities), "sqrt").array

    assert np.allclose(back, probabilities, atol=3e-5, rtol=0.15)
    assert len(set(back.tolist())) == 5


def test_the_first_non_finite_value_is_named() -> None:
    array = np.array([[1.0, 2.0], [np.inf, np.nan]], np.float32)

    frame = encode(Values(array), "asinh")

    assert frame.flags & Flag.NONFINITE
    assert frame.sections[Section.FIRST_NONFINITE] == (2).to_bytes(8, "little")


def test_masked_cells_are_no_non_finite_values_and_leave_the_range_alone() -> None:
    frame = encode(Values(np.array([1.0, -1e4], np.float32), masked=np.array([False, True])), "asinh")

    assert not frame.flags & Flag.NONFINITE
    assert (frame.low, frame.high) == (1.0, 1.0)


def test_a_triangle_masks_what_is_above_the_diagonal() -> None:
    array = np.arange(18, dtype=np.float32).reshape(2, 3, 3)

    back = decode(unpack(pack(encode(Values(array), "f32").with_codec(Codec.TRIANGLE))))

    assert np.array_equal(np.nan_to_num(back.array), np.tril(array))
    assert back.masked is not None
    assert np.array_equal(back.masked[0], np.triu(np.ones((3, 3), bool), 1))


def test_a_quantiser_that_does_not_exist_is_refused_with_those_that_do() -> None:
    with pytest.raises(DataError, match="asinh, asinh16"):
        encode(Values(np.zeros(3, np.float32)), "eval")


@pytest.mark.parametrize("name", sorted(FORMATS))
@pytest.mark.parametrize("array", [np.zeros((0, 3)), np.zeros(()), np.full((2, 2), np.nan), np.full(3, 7.0)])
def test_what_has_no_range_has_a_frame_too(name: str, array: Floats) -> None:
    array = array.astype(np.float32)

    assert np.allclose(through(Values(array), name).array, array, equal_nan=True, rtol=1e-3)
