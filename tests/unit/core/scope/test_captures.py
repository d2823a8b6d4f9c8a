"""Whatever is wanted is cut into units that fit, and comes together again."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from megatronapp.core.errors import DataError
from megatronapp.core.scope.captures import (
    BATCH_BYTES,
    BATCH_UNITS,
    UNIT_BYTES,
    Captured,
    Unit,
    Wanted,
    batches,
    units,
)
from megatronapp.core.scope.expression import parse
from megatronapp.core.scope.frame import Frame, Section
from megatronapp.core.scope.quantize import Values
from megatronapp.core.scope.results import to_frame
from megatronapp.core.scope.sites import Coordinates, Model, standard_sites

LAYERS = 6
MODEL = Model(layers=LAYERS, hidden=576, heads=9, head_channels=64, mlp_channels=1536, vocabulary=4000, query_groups=3)
SITES = {site.name: site for site in standard_sites(MODEL, Coordinates(layers=tuple(range(LAYERS))))}
ALL = tuple(range(LAYERS))
WANTED = [Wanted("resid_post", ALL), Wanted("attn.probs", (1, 4)), Wanted("attn.q", ALL), Wanted("logits")]


def _frames(unit: Unit, passes: list[tuple[int, int]], truth: dict[tuple[str, int | None], np.ndarray]) -> list[Frame]:
    """What ranks send of passes over these positions."""
    found = []
    axis = next(at for at, name in enumerate(unit.axes) if name in ("token", "query"))
    for first, end in passes:
        low, high = (0, end - first) if unit.rows is None else (min(each, end - first) for each in unit.rows)
        if low == high:
            continue
        for place in unit.places:
            part = truth[place].take(range(first + low, first + high), axis)
            part = part[..., :end] if "key" in unit.axes else part
            origin = np.array([first if at == axis else 0 for at in range(len(unit.axes))], "<u4").tobytes()
            frame = to_frame(Values(part.astype(np.float32)), "f32")
            found.append(
                replace(frame, step=end - 1, layer=place[1], sections={**frame.sections, Section.ORIGIN: origin})
            )
    return found


@settings(max_examples=25, deadline=None)
@given(st.integers(1, 3), st.integers(1, 90), st.integers(0, 3), st.randoms())
def test_frames_of_units_make_the_whole(rows: int, prompt: int, decoded: int, random: object) -> None:
    positions = prompt + decoded
    passes = [(0, prompt), *((at, at + 1) for at in range(prompt, positions))]
    made = units(WANTED, SITES, rows, positions)
    truth = _truth(made, rows, positions)
    frames = [(unit, frame) for unit in made for frame in _frames(unit, passes, truth)]
    random.shuffle(frames)  # type: ignore[attr-defined]
    captured = Captured()
    for unit in made:
        captured.subscribed(unit, unit.axes)
    lost, *others = frames

    for unit, frame in others:
        captured.add(unit, frame)
    assert lost[0] in captured.missing(made, positions)
    captured.add(*lost)

    assert captured.missing(made, positions) == []
    values = captured.values()
    assert values.keys() == truth.keys()
    for place, expected in truth.items():
        past = np.isnan(values[place]) if place[0] == "attn.probs" else np.zeros(expected.shape, bool)
        assert np.array_equal(np.where(past, 0, values[place]), np.where(past, 0, expected))


def _truth(made: list[Unit], rows: int, positions: int) -> dict[tuple[str, int | None], np.ndarray]:
    sizes = {"batch": rows, "token": positions, "query": positions, "key": positions}
    shapes = {
        place: [sizes.get(axis.name, axis.size) for axis in SITES[place[0]].axes]
        for unit in made
        for place in unit.places
    }
    draw = np.random.default_rng(0).standard_normal
    return {place: draw(shape, np.float32) for place, shape in shapes.items()}


@given(st.integers(1, 8), st.integers(1, 300))
def test_units_and_batches_fit(rows: int, positions: int) -> None:
    made = units(WANTED, SITES, rows, positions)

    assert all(unit.nbytes <= UNIT_BYTES for unit in made)
    assert all(str(parse(unit.expression)) for unit in made)
    for batch in batches(made):
        assert len(batch) <= BATCH_UNITS
        assert sum(unit.nbytes for unit in batch) <= BATCH_BYTES
    assert [unit for batch in batches(made) for unit in batch] == made


def test_a_picture_that_lacks_shards_is_not_taken() -> None:
    [unit] = units([Wanted("resid_post", (0,))], SITES, 1, 2)
    truth = _truth([unit], 1, 2)
    [frame] = _frames(unit, [(0, 2)], truth)
    captured = Captured()
    captured.subscribed(unit, unit.axes)

    captured.add(unit, replace(frame, missing_shards=1))

    assert captured.missing([unit], 2) == [unit]


def test_what_is_not_there_or_too_large_is_refused() -> None:
    with pytest.raises(DataError, match="no site nothing"):
        units([Wanted("nothing")], SITES, 1, 4)
    with pytest.raises(DataError, match="fewer prompts"):
        units([Wanted("logits")], SITES, 512, 4)
