"""Whole values of sites, exactly, out of frames: what to subscribe to, and how frames become arrays again.

A frame, a subscription and a rank's ring hold so much each. So what is wanted is cut into units that fit, and units are
asked for in batches, for each of which the model computes the same once more; so it does for what did not come.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from megatronapp.core.errors import DataError
from megatronapp.core.scope.frame import Frame, Section
from megatronapp.core.scope.quantize import Values
from megatronapp.core.scope.results import of_frame
from megatronapp.core.scope.sites import Axis, Site

UNIT_BYTES = 1900 << 10
"""Below a frame's 2 MiB and a subscription's 4 MiB."""
BATCH_BYTES = 12 << 20
"""Below a rank's ring of frames."""
BATCH_UNITS = 15
QUANTIZER = "f32"
ROWS = ("token", "query")
Floats = npt.NDArray[np.float32]
Place = tuple[str, int | None]
"""Site and layer."""


@dataclass(frozen=True)
class Wanted:
    """One site of some layers, and operations that leave its rows: `| last(1)`, `| head(2)`."""

    site: str
    layers: tuple[int, ...] = ()
    operations: str = ""


@dataclass(frozen=True)
class Unit:
    """One subscription. `first`, `last`: the rows that it shows of the pass, where it is not all of them."""

    wanted: Wanted
    axes: tuple[str, ...]
    nbytes: int
    rows: tuple[int, int] | None = None

    @property
    def expression(self) -> str:
        site, layers = self.wanted.site, self.wanted.layers
        selector = f"layers[{','.join(map(str, layers))}].{site}" if layers else site
        operations = [self.wanted.operations] if self.wanted.operations else []
        if self.rows is not None:
            axis = next(name for name in self.axes if name in ROWS)
            operations.insert(0, f"{axis}({self.rows[0]}:{self.rows[1]})")
            if "key" in self.axes:
                operations.insert(1, f"key(0:{self.rows[1]})")
        return " | ".join((selector, *operations))

    @property
    def places(self) -> list[Place]:
        return [(self.wanted.site, layer) for layer in self.wanted.layers or (None,)]


def units(wanted: Sequence[Wanted], sites: Mapping[str, Site], rows: int, positions: int) -> list[Unit]:
    """Of a request with so many rows (of its batch) and positions. Raises DataError for a site that is not there."""
    found: list[Unit] = []
    for each in wanted:
        site = sites.get(each.site)
        if site is None:
            raise DataError(f"the model has no site {each.site}; it has {', '.join(sorted(sites))}")
        found += _units(each, site.axes, rows, positions)
    return found


def _units(wanted: Wanted, axes: Sequence[Axis], rows: int, positions: int) -> Iterator[Unit]:
    names = tuple(axis.name for axis in axes)
    along = next((name for name in names if name in ROWS), None)
    sizes = {"batch": rows, "key": positions}
    others = math.prod(sizes.get(axis.name, axis.size) for axis in axes if axis.name != along)
    if wanted.operations or along is None:
        for layer in wanted.layers or (None,):
            one = replace(wanted, layers=() if layer is None else (layer,))
            yield Unit(one, names, min(4 * others, UNIT_BYTES))
        return
    most = UNIT_BYTES // (4 * others)
    if not most:
        raise DataError(f"one row of {wanted.site} has {4 * others} bytes, more than a frame holds: give fewer prompts")
    for first in range(0, positions, most):
        last = min(first + most, positions)
        layers = max(UNIT_BYTES // (4 * others * (last - first)), 1)
        for at in range(0, max(len(wanted.layers), 1), layers):
            part = replace(wanted, layers=wanted.layers[at : at + layers])
            yield Unit(part, names, 4 * others * (last - first) * max(len(part.layers), 1), (first, last))


def batches(all_units: Sequence[Unit]) -> Iterator[list[Unit]]:
    batch: list[Unit] = []
    for unit in all_units:
        if batch and (len(batch) == BATCH_UNITS or sum(each.nbytes for each in batch) + unit.nbytes > BATCH_BYTES):
            yield batch
            batch = []
        batch.append(unit)
    if batch:
        yield batch


class Captured:
    """Frames of units, of however many passes, on their way to arrays."""

    def __init__(self) -> None:
        self._axes: dict[str, tuple[str, ...]] = {}
        """Of a frame, by the unit's expression."""
        self._frames: dict[tuple[Unit, int | None, int], Frame] = {}
        """By unit, layer and step."""

    def subscribed(self, unit: Unit, axes: Sequence[str]) -> None:
        self._axes[unit.expression] = tuple(axes)

    def add(self, unit: Unit, frame: Frame) -> None:
        """Of a picture whose shards are not all there nothing is taken."""
        if not frame.missing_shards:
            self._frames[unit, frame.layer, frame.step] = frame

    def missing(self, all_units: Sequence[Unit], positions: int) -> list[Unit]:
        """Those of which something has not come yet, of passes that computed so many positions together."""
        rows: dict[Place, int] = {}
        for (unit, layer, _), frame in self._frames.items():
            place = unit.wanted.site, layer
            rows[place] = rows.get(place, 0) + self._rows(unit, frame, positions)
        return [unit for unit in all_units if any(rows.get(place, 0) < positions for place in unit.places)]

    def values(self) -> dict[Place, Floats]:
        """In the axes of a frame, all rows one behind the other. Masked cells are NaN."""
        pieces: dict[Place, list[tuple[int, Unit, Frame]]] = {}
        for (unit, layer, _), frame in self._frames.items():
            first = _origin(frame) + (unit.rows[0] if unit.rows else 0)
            pieces.setdefault((unit.wanted.site, layer), []).append((first, unit, frame))
        return {place: self._joined(sorted(found, key=lambda each: each[0])) for place, found in pieces.items()}

    def _rows(self, unit: Unit, frame: Frame, positions: int) -> int:
        """That a frame shows: of what has no rows it shows all."""
        if not any(axis in ROWS for axis in unit.axes):
            return positions
        if unit.rows is None:
            return frame.step + 1 - _origin(frame)
        return frame.dims[_along(self._axes[unit.expression])]

    def _joined(self, pieces: Sequence[tuple[int, Unit, Frame]]) -> Floats:
        axes = self._axes[pieces[0][1].expression]
        arrays = [_array(frame) for _, _, frame in pieces]
        if len(arrays) == 1 or not any(axis in ROWS for axis in axes):
            return arrays[-1]
        if "key" in axes:
            key = axes.index("key")
            most = max(array.shape[key] for array in arrays)
            arrays = [_widened(array, key, most) for array in arrays]
        return np.concatenate(arrays, axis=_along(axes))


def _along(axes: Sequence[str]) -> int:
    return next(axes.index(name) for name in ROWS if name in axes)


def _array(frame: Frame) -> Floats:
    result = of_frame(frame)
    if not isinstance(result, Values):
        raise DataError(f"a {frame.kind.name} is no array of values: leave the last operation away")
    return np.where(result.absent, np.float32(np.nan), result.array).astype(np.float32)


def _origin(frame: Frame) -> int:
    return max(map(int, np.frombuffer(frame.sections.get(Section.ORIGIN, b""), "<u4")), default=0)


def _widened(array: Floats, axis: int, size: int) -> Floats:
    """With NaN, as masked cells are."""
    widths = [(0, size - array.shape[axis] if at == axis else 0) for at in range(array.ndim)]
    return np.pad(array, widths, constant_values=np.nan)
