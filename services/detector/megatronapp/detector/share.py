"""The runs on the bus that this replica judges: all of them, or its share, as that grows and shrinks. A run that is new
to it is judged once its past has been read.
"""

from __future__ import annotations

import time
from collections.abc import Iterable

from megatronapp.core.logging import get_logger
from megatronapp.detector.ownership import Ownership

log = get_logger(__name__)


class Share:
    def __init__(self, ownership: Ownership, keep_seconds: float) -> None:
        """keep_seconds: runs of which nothing was heard for so long are forgotten."""
        self._ownership, self._keep_seconds = ownership, keep_seconds
        self._runs: dict[str, float] = {}
        """Where runs are shared, all that are on the bus: when they were there last, of the monotonic clock."""
        self._gained: frozenset[str] = frozenset()

    @property
    def of_many(self) -> bool:
        """Whether there are other replicas to share the runs with."""
        return self._ownership.shared

    @property
    def gained(self) -> frozenset[str]:
        """Runs that are this replica's, and whose past is not read yet."""
        return self._gained

    def owns(self, run: str) -> bool:
        """Whether a run is this replica's."""
        return self._ownership.owns(run)

    def judges(self, run: str) -> bool:
        """Whether a run is this replica's, and its past is known."""
        return self._ownership.owns(run) and run not in self._gained

    def note(self, run: str) -> bool:
        """Something of the run is on the bus; returns whether it is to be judged here."""
        if not self.of_many:
            return True
        self._runs[run] = time.monotonic()
        return self.judges(run)

    def know(self, runs: Iterable[str]) -> None:
        """These are somebody's, also where the bus holds nothing of them."""
        self._runs |= dict.fromkeys(runs, time.monotonic())

    def catch_up(self, runs: frozenset[str]) -> None:
        """Their past has been read."""
        self._gained -= runs

    async def renew(self) -> frozenset[str]:
        """Take this replica's share of the runs; returns those that are lost."""
        forgotten = time.monotonic() - self._keep_seconds
        self._runs = {run: heard_at for run, heard_at in self._runs.items() if heard_at > forgotten}
        gained, lost = await self._ownership.renew(sorted(self._runs))
        self._gained = self._gained - lost | gained
        if gained or lost:
            log.info("runs_shared", gained=sorted(gained), lost=sorted(lost))
        return lost

    async def leave(self) -> None:
        """Let the others have all at once."""
        await self._ownership.leave()
