"""Operations over several frames of a stream: principal components, and comparison with another generation."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import numpy.typing as npt

from megatronapp.core.errors import DataError
from megatronapp.core.scope.expression import Expression
from megatronapp.core.scope.frame import Flag, Frame, Section
from megatronapp.core.scope.operations import Compare, Last, Pool, Reduce, Take
from megatronapp.core.scope.operations import Pca as PcaOperation
from megatronapp.core.scope.pca import Pca
from megatronapp.core.scope.plan import Plan
from megatronapp.core.scope.quantize import Values
from megatronapp.core.scope.results import Result, to_frame
from megatronapp.core.scope.sites import PROBABILITIES
from megatronapp.gateway.scope.assembly import Picture, PictureKey

MAX_BASELINE_BYTES = 32 << 20
UNKNOWN = 0xFFFF_FFFF
POSITIONS = ("token", "query")
"""Axes along a text."""


@dataclass(frozen=True, slots=True)
class Compared:
    result: Result
    sections: dict[Section, bytes] = field(default_factory=dict)
    flags: Flag = Flag(0)  # noqa: RUF009  # a constant

    def frame(self, quantizer: str) -> Frame:
        """Raises DataError."""
        frame = to_frame(self.result, quantizer)
        return replace(frame, sections={**frame.sections, **self.sections}, flags=frame.flags | self.flags)


class Beside:
    """What one stream remembers of earlier frames."""

    def __init__(self, site: str) -> None:
        self._methods = _METHODS | ({"kl": _divergence_of_probabilities} if site in PROBABILITIES else {})
        self._pca: dict[int | None, Pca] = {}
        self._requests: dict[str, int] = {}
        self._baseline: OrderedDict[Hashable, npt.NDArray[np.float32]] = OrderedDict()
        self._baseline_bytes = 0

    def apply(self, made: Plan, picture: Picture, result: Result) -> Compared | None:
        """None: there is nothing to show yet. Raises DataError for a result that is no tensor."""
        compared = Compared(result)
        for operation in made.beside:
            if not isinstance(compared.result, Values):
                raise DataError(f"{operation} needs a tensor")
            following = (
                self._principal(operation, made, picture, compared.result)
                if isinstance(operation, PcaOperation)
                else self._compare(operation, picture, compared.result)
            )
            if following is None:
                return None
            compared = following
        return compared

    def _principal(self, operation: PcaOperation, made: Plan, picture: Picture, values: Values) -> Compared | None:
        key = picture.key
        pca = self._pca.setdefault(key.layer, Pca(operation.components, operation.pinned))
        rows = values.array.reshape(-1, values.array.shape[-1])
        request = self._requests.setdefault(key.request, len(self._requests))
        labels = np.empty((len(rows), 4), np.uint32)
        labels[:, 0], labels[:, 1], labels[:, 2:] = request, key.step, row_places(made, key, values.array.shape[:-1])
        pca.add(rows, labels)
        projected = pca.projected()
        if projected is None:
            return None
        points, labels, basis = projected
        sections = {
            Section.EXPLAINED: basis.explained.astype("<f4").tobytes(),
            Section.ROWS: labels.astype("<u4").tobytes(),
        }
        return Compared(Values(points), sections)

    def _compare(self, operation: Compare, picture: Picture, values: Values) -> Compared | None:
        key = picture.key
        place = key.layer, key.step, key.microbatch
        if key.request == operation.baseline:
            self._remember(place, values.array)
            return None
        before = self._baseline.get(place)
        if before is None or before.shape != values.array.shape:
            return None
        with np.errstate(all="ignore"):
            array = self._methods[operation.how](values.array.astype(np.float64), before.astype(np.float64))
        return Compared(Values(np.asarray(array, np.float32)), flags=Flag.DIFF)

    def _remember(self, place: Hashable, array: npt.NDArray[np.float32]) -> None:
        before = self._baseline.pop(place, None)
        self._baseline_bytes += array.nbytes - (0 if before is None else before.nbytes)
        self._baseline[place] = array
        while self._baseline_bytes > MAX_BASELINE_BYTES and len(self._baseline) > 1:
            self._baseline_bytes -= self._baseline.popitem(last=False)[1].nbytes


Numbers = npt.NDArray[np.int64]


def row_places(made: Plan, key: PictureKey, shape: Sequence[int]) -> npt.NDArray[np.uint32]:
    """Of rows with these leading axes, one after the other: entry of the batch and position, `UNKNOWN` where they have
    none. [rows, 2]"""
    places = np.full((*shape, 2), UNKNOWN, np.uint32)
    for axis, size in zip((track.name for track in made.parts), key.extents, strict=True):
        if axis != "batch" and axis not in POSITIONS:
            continue
        numbers = _left_of(made.expression, axis, size)
        if axis in POSITIONS and key.request:  # a pass of a generation has its last rows
            numbers = numbers + key.step - size + 1
        at = made.before.index(axis) if axis in made.before else None
        if len(numbers) == (1 if at is None else shape[at]):
            along = [-1 if dim == at else 1 for dim in range(len(shape))]
            places[..., int(axis in POSITIONS)] = numbers.reshape(along) if at is not None else numbers
    return places.reshape(-1, 2)


def _left_of(expression: Expression, axis: str, size: int) -> Numbers:
    """Which entries of a site's axis the expression leaves; none: entries are put together."""
    left = np.arange(size)
    for operation in expression.operations:
        match operation:
            case Last(count=count) if axis in POSITIONS:
                left = left[-count:]
            case Take(axis=of, pick=int(index)) if of == axis:
                left = left[index:][:1]
            case Take(axis=of, pick=pick) if of == axis and not isinstance(pick, int):
                left = left[slice(pick.start, pick.stop, pick.step)]
            case Pool(axis=of) | Reduce(axis=of) if of == axis:
                return left[:0]
    return left


Doubles = npt.NDArray[np.float64]


def _difference(now: Doubles, before: Doubles) -> Doubles:
    return now - before


def _cosine(now: Doubles, before: Doubles) -> Doubles:
    lengths = np.linalg.norm(now, axis=-1) * np.linalg.norm(before, axis=-1)
    return np.asarray((now * before).sum(-1) / lengths)


def _divergence(now: Doubles, before: Doubles) -> Doubles:
    """KL(baseline ‖ this), nats, of the softmax along the last axis."""
    logs = [each - each.max(-1, keepdims=True) for each in (before, now)]
    one, other = (each - np.log(np.exp(each).sum(-1, keepdims=True)) for each in logs)
    return np.asarray((np.exp(one) * (one - other)).sum(-1))


def _divergence_of_probabilities(now: Doubles, before: Doubles) -> Doubles:
    return np.asarray(np.where(before > 0, before * (np.log(before) - np.log(now)), 0.0).sum(-1))


_METHODS = {"diff": _difference, "cos": _cosine, "kl": _divergence}
