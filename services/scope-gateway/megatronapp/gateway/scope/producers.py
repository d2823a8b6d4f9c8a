"""Ranks that are connected: what each has, and what waits to be sent to it."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Iterable

from megatronapp.core.errors import DataError, UnavailableError
from megatronapp.core.scope.sites import Site
from megatronapp.core.scope.wire import sites_from_proto
from megatronapp.v1 import scope_pb2, trace_pb2

MAX_WAITING = 256
ROLES = frozenset({"train", "generate", "perturb"})
MAX_MODEL_NAME = 256

SiteKey = tuple[str, bool]
"""Name, and whether it is the entry for generation."""


class Producer:
    """One rank's stream. What is asked of it is sent in order; of demands that follow each other only the newest."""

    def __init__(self, hello: scope_pb2.ScopeHello) -> None:
        """Raises DataError for sites or sizes that can't be."""
        self.identity: trace_pb2.Identity = hello.identity
        self.placement: trace_pb2.Placement = hello.placement
        self.roles = frozenset(hello.roles) & ROLES
        self.model: scope_pb2.ScopeModel = hello.model
        self.state: scope_pb2.ScopeState = hello.state
        self.sites: dict[SiteKey, Site] = {}
        if len(hello.model.name) > MAX_MODEL_NAME:
            raise DataError(f"a model's name has at most {MAX_MODEL_NAME} characters")
        self.take_sites(hello.sites)
        self._waiting: deque[scope_pb2.ScopeDown] = deque()
        """Not yet sent."""
        self._taps: list[scope_pb2.ScopeTap] = []
        self._confirms = hello.confirms_demands
        self._asked_revision = self._revision_in_force = 0
        self._wake = asyncio.Event()
        self._closed = False

    @property
    def rank(self) -> int:
        return self.identity.rank

    @property
    def run(self) -> str:
        return self.identity.run

    def take_sites(self, messages: Iterable[scope_pb2.ScopeSite]) -> None:
        for site in sites_from_proto(messages):
            self.sites[site.name, site.generates] = site

    def site(self, name: str, *, generates: bool) -> Site | None:
        """Its entry for generation, where there is one and it is asked for; else the one for all."""
        found = self.sites.get((name, True)) if generates else None
        return found or self.sites.get((name, False)) or self.sites.get((name, True))

    def ask(self, demand: scope_pb2.ScopeDemand) -> None:
        """In place of what was asked before; the same again is not sent."""
        if list(demand.taps) == self._taps:
            return
        self._taps, self._asked_revision = list(demand.taps), demand.revision
        if self._waiting and self._waiting[-1].HasField("demand"):
            self._waiting.pop()
        self._waiting.append(scope_pb2.ScopeDown(demand=demand))
        self._wake.set()

    def take_in_force(self, revision: int) -> None:
        """The rank shows what this demand asked for."""
        self._revision_in_force = max(self._revision_in_force, revision)

    @property
    def settled(self) -> bool:
        """Whether the newest demand is in force there, as far as the rank says such things."""
        return not self._confirms or self._revision_in_force >= self._asked_revision

    def command(self, command: scope_pb2.ScopeCommand) -> None:
        """Raises UnavailableError when the rank takes none."""
        if len(self._waiting) >= MAX_WAITING:
            raise UnavailableError(f"rank {self.rank} takes no commands; it has {MAX_WAITING} waiting")
        self._waiting.append(scope_pb2.ScopeDown(command=command))
        self._wake.set()

    def close(self) -> None:
        """Another stream has taken this one's place, or the gateway stops."""
        self._closed = True
        self._wake.set()

    async def next(self) -> scope_pb2.ScopeDown | None:
        """What is to be sent; None when it is closed."""
        while True:
            if self._closed:
                return None
            if self._waiting:
                return self._waiting.popleft()
            self._wake.clear()
            await self._wake.wait()
