"""What is conspicuous in values that are shown."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from megatronapp.core.scope import reducers
from megatronapp.core.scope.expression import parse
from megatronapp.core.scope.quantize import Values
from megatronapp.core.scope.results import Partial
from megatronapp.trainer.plugins.scope.statistics import OUTLIER_RATIO, alerts, kept_axes

STREAM, HEADS = ("batch", "token", "chan"), ("batch", "token", "head", "chan")


def kinds(site: str, axes: tuple[str, ...], array: npt.NDArray[np.float32], text: str = "") -> list[str]:
    operations = parse(f"site{text}").operations
    return [alert.kind for alert in alerts(site, axes, operations, Values(array))]


def stream() -> npt.NDArray[np.float32]:
    return np.random.default_rng(1).standard_normal((2, 16, 64)).astype(np.float32)


def test_ordinary_values_are_not_conspicuous() -> None:
    assert kinds("resid_post", STREAM, stream()) == []


@pytest.mark.parametrize("wrong", [np.nan, np.inf, -np.inf])
def test_a_value_that_is_no_number_is_told(wrong: float) -> None:
    values = stream()
    values[1, 3, 5] = wrong

    assert kinds("resid_post", STREAM, values) == ["nonfinite"]


def test_masked_cells_are_not_meant() -> None:
    values = stream()
    masked = np.zeros(values.shape, bool)
    masked[0, 0, 0], values[0, 0, 0] = True, np.nan

    assert alerts("resid_post", STREAM, (), Values(values, masked)) == []


def test_statistics_of_a_shard_tell_it_too() -> None:
    [stats] = parse("site | stats(mean)").operations
    values = np.array([1.0, np.nan, 2.0])
    found = reducers.statistics(stats, values, np.ones(3, bool))  # type: ignore[arg-type]

    assert [alert.kind for alert in alerts("mlp.out", STREAM, (stats,), Partial(found))] == ["nonfinite"]


def test_a_channel_far_above_the_others_is_an_outlier() -> None:
    values = stream()
    values[:, :, 17] *= 100

    [alert] = alerts("resid_post", STREAM, (), Values(values))
    assert alert.kind == "outlier_channel"
    assert "channels 17 " in alert.detail


def test_a_head_that_writes_nothing_is_dead() -> None:
    values = np.random.default_rng(2).standard_normal((2, 8, 4, 16)).astype(np.float32)
    values[:, :, 2] = 0

    assert kinds("attn.context", HEADS, values) == ["dead_head"]
    assert kinds("attn.context", HEADS, values.max(-1), " | absmax(chan)") == ["dead_head"]
    assert kinds("attn.q", HEADS, values) == []


@pytest.mark.parametrize(
    ("text", "left"),
    [
        ("", HEADS),
        (" | head(2) | abs", ("batch", "token", "chan")),
        (" | head(0:2) | mean(token)", ("batch", "head", "chan")),
        (" | pool(chan,4,max)", None),
        (" | stats(mean)", None),
    ],
)
def test_which_axes_are_left(text: str, left: tuple[str, ...] | None) -> None:
    assert kept_axes(HEADS, parse(f"site{text}").operations) == left


@given(st.lists(st.floats(0, 1024, width=32) | st.sampled_from([0.0, 1.0, 19.0, 20.0, 21.0]), min_size=1, max_size=24))
@settings(max_examples=300, deadline=None)
def test_outliers_are_those_above_so_many_medians(channels: list[float]) -> None:
    """Most values show without a median that there are none."""
    values = np.array([channels], np.float32)
    median = np.median(values)
    far = int((values > OUTLIER_RATIO * float(median)).sum()) if median > 0 else 0
    expected = 0 < far <= max(len(channels) // 20, 1)

    assert (kinds("resid_post", ("token", "chan"), values) == ["outlier_channel"]) is expected


def test_what_is_known_of_values_changes_no_alert() -> None:
    values = stream()
    values[:, :, 17] *= 100

    assert alerts("resid_post", STREAM, (), Values(values), finite=True) == alerts(
        "resid_post", STREAM, (), Values(values)
    )
