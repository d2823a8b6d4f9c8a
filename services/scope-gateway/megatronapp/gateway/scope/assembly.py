"""Shards of one picture wait for each other, not for long: a newer step, or a deadline, sends what has come."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass, field

from megatronapp.core.scope.frame import Frame
from megatronapp.core.scope.results import Result, of_frame
from megatronapp.core.scope.stitch import Piece

MAX_PENDING = 1024
MAX_PENDING_BYTES = 256 << 20
"""Of the shards of one tap that wait; the oldest picture goes out without what it lacks."""
REMEMBERED = 4096
"""Pictures that were sent: a shard that comes later is dropped."""
DEADLINE_SECONDS = 2.0


@dataclass(frozen=True, slots=True)
class PictureKey:
    layer: int | None
    step: int
    microbatch: int | None
    request: str
    extents: tuple[int, ...]

    @property
    def series(self) -> tuple[int | None, int | None, str]:
        """Of this a newer step replaces an older one."""
        return self.layer, self.microbatch, self.request


@dataclass(slots=True)
class Picture:
    key: PictureKey
    generates: bool
    began: float
    frames: dict[Piece, Frame] = field(default_factory=dict)
    _results: dict[Piece, Result] | None = None

    @property
    def nbytes(self) -> int:
        return sum(len(frame.payload) for frame in self.frames.values())

    def results(self) -> dict[Piece, Result]:
        """Decoded once, for all streams of it. Raises DataError."""
        if self._results is None:
            self._results = {piece: of_frame(frame) for piece, frame in self.frames.items()}
        return self._results


class Assembly:
    """The pictures of one tap."""

    def __init__(self) -> None:
        self._pending: OrderedDict[PictureKey, Picture] = OrderedDict()
        self._sent: OrderedDict[PictureKey, None] = OrderedDict()
        self._bytes = 0
        self.late = 0

    def add(
        self, key: PictureKey, piece: Piece, frame: Frame, needed: set[Piece], now: float, *, generates: bool
    ) -> list[Picture]:
        """Pictures that are due now: this one if complete, and older ones of its series."""
        if key in self._sent:
            self.late += 1
            return []
        picture = self._pending.setdefault(key, Picture(key, generates, now))
        if piece not in picture.frames:
            picture.frames[piece] = frame
            self._bytes += len(frame.payload)
        due = []
        if needed <= picture.frames.keys():
            older = [other for other in self._pending if other.series == key.series and other.step < key.step]
            due = [self._take(other) for other in older] + [self._take(key)]
        while len(self._pending) > MAX_PENDING or self._bytes > MAX_PENDING_BYTES:
            due.append(self._take(next(iter(self._pending))))
        return due

    def overdue(self, now: float) -> list[Picture]:
        keys = []
        for key, picture in self._pending.items():
            if now - picture.began < DEADLINE_SECONDS:
                break
            keys.append(key)
        return [self._take(key) for key in keys]

    def _take(self, key: PictureKey) -> Picture:
        self._sent[key] = None
        while len(self._sent) > REMEMBERED:
            self._sent.popitem(last=False)
        picture = self._pending.pop(key)
        self._bytes -= picture.nbytes
        return picture
