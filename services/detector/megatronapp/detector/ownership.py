"""Which runs this detector judges: all of them, or where several replicas share them, those that it owns.

Each run belongs to the living replica that rendezvous hashing names (Thaler, Ravishankar 1998): all replicas agree
without speaking to each other, and when one comes or goes only its own share moves. A lease in Redis on each run makes
sure that there are never two owners, also while replicas disagree on who lives: the old one lets go first.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Iterable, Sequence
from typing import Protocol

from megatronapp.core.errors import UnavailableError
from megatronapp.core.logging import get_logger

log = get_logger(__name__)

LEASE_SECONDS = 10.0
"""The runs of a replica that has died are free after so long."""
ROUND_SECONDS = 2.0
"""How often leases are renewed, and free runs are taken."""


class Leases(Protocol):
    """See core.leases."""

    holder: str
    seconds: float

    async def meet(self) -> list[str]: ...
    async def hold(self, names: Sequence[str]) -> set[str]: ...
    async def release(self, names: Sequence[str]) -> None: ...
    async def leave(self) -> None: ...


class Ownership:
    """The runs of one replica; without `leases` all runs."""

    def __init__(self, leases: Leases | None = None) -> None:
        self._leases = leases
        self._mine: frozenset[str] = frozenset()
        self._until = 0.0
        """The leases hold at least so long, on the monotonic clock."""

    @property
    def shared(self) -> bool:
        return self._leases is not None

    def owns(self, run: str) -> bool:
        return self._leases is None or (run in self._mine and time.monotonic() < self._until)

    async def renew(self, runs: Iterable[str]) -> tuple[frozenset[str], frozenset[str]]:
        """Take this replica's share of the runs; returns those that are gained, and those that are lost. A run whose
        lease has expired meanwhile is lost, and may be gained again: another replica may have judged it."""
        if self._leases is None:
            return frozenset(), frozenset()
        begun, before = time.monotonic(), self._mine
        held = frozenset(run for run in before if self.owns(run))
        try:
            replicas = await self._leases.meet()
            share = [run for run in runs if preferred(run, replicas) == self._leases.holder]
            self._mine = held.intersection(share)  # from here on nothing is judged that others may take
            await self._leases.release(sorted(held - self._mine))
            self._mine = frozenset(await self._leases.hold(share))
            self._until = begun + self._leases.seconds
        except UnavailableError as error:
            log.warning("leases_not_renewed", error=str(error))
            self._mine &= held
        return self._mine - held, before - (self._mine & held)

    async def leave(self) -> None:
        """Let the others have all at once."""
        if self._leases is None:
            return
        mine, self._mine = sorted(self._mine), frozenset()
        try:
            await self._leases.leave()
            await self._leases.release(mine)
        except UnavailableError as error:
            log.warning("leases_not_released", error=str(error))


def preferred(run: str, replicas: Iterable[str]) -> str:
    """The replica to which a run belongs."""
    return max(replicas, key=lambda replica: hashlib.blake2b(f"{replica}/{run}".encode(), digest_size=8).digest())
