"""What a forward rank makes for a step that is expected and may not come: kept until it is known to, or given up."""

from __future__ import annotations

from collections.abc import Callable

Send = Callable[[], None]


class Held:
    """Sends at once, unless it holds."""

    def __init__(self) -> None:
        self._waiting: list[Send] | None = None

    def hold(self) -> None:
        """From now on, until `release` or `drop`."""
        self._waiting = []

    def send(self, send: Send) -> None:
        """Call it, now or in `release`."""
        if self._waiting is None:
            send()
        else:
            self._waiting.append(send)

    def release(self) -> None:
        """In the order in which they came."""
        waiting, self._waiting = self._waiting or [], None
        for send in waiting:
            send()

    def drop(self) -> None:
        self._waiting = None
