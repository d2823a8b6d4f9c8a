"""The values of what is shown just now, as exact as the rank gave them.

Frames go out in the quantiser that a tap asks for. Somebody who wants the same values exactly, for a file or a number,
asks for the same expression in another quantiser: that is another tap, and it gets at once what the first one has
shown, although the model has gone on, or stands.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Sequence

from megatronapp.core.scope.frame import Frame, addressed
from megatronapp.v1 import scope_pb2

MAX_BYTES = 16 << 20
"""Of one rank; the oldest frames go first."""
_Key = tuple[Hashable, Hashable]
"""What is shown, and where in it a frame is."""


class ShownFrames:
    """Not guarded: for callers that hold a lock."""

    def __init__(self, max_bytes: int = MAX_BYTES) -> None:
        self._max_bytes = max_bytes
        self._bytes = 0
        self._what: dict[int, Hashable] = {}
        """By tap, what it shows, in whatever quantiser."""
        self._frames: dict[_Key, bytes] = {}
        """By what it shows and its place, the oldest first."""

    def ask(self, taps: Sequence[scope_pb2.ScopeTap]) -> list[tuple[int, bytes]]:
        """These taps are asked for now. What new ones get at once, as frames of their own."""
        before, self._what = self._what, {tap.id: _what(tap) for tap in taps}
        wanted = set(self._what.values())
        for key in [key for key in self._frames if key[0] not in wanted]:
            self._remove(key)
        fresh = self._what.keys() - before.keys()
        return [(tap, addressed(data, tap, 0)) for tap in sorted(fresh) for data in self._of_what(self._what[tap])]

    def keep(self, tap: int, frame: Frame, data: bytes) -> None:
        """`frame` is what `data` holds. Of a training the newest of each layer is kept, of a generation each step."""
        what = self._what.get(tap)
        if what is None or len(data) > self._max_bytes:
            return
        step = frame.step if frame.request else None
        key = what, (frame.layer, step, frame.request)
        self._remove(key)
        self._frames[key] = data
        self._bytes += len(data)
        while self._bytes > self._max_bytes:
            self._remove(next(iter(self._frames)))

    def clear(self) -> None:
        self._what, self._frames, self._bytes = {}, {}, 0

    def _of_what(self, what: Hashable) -> Iterator[bytes]:
        return (data for key, data in self._frames.items() if key[0] == what)

    def _remove(self, key: _Key) -> None:
        self._bytes -= len(self._frames.pop(key, b""))


def _what(tap: scope_pb2.ScopeTap) -> Hashable:
    return tap.expression, tap.partial, tap.request, tap.every_steps, tap.when
