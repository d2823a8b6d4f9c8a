"""A rank of an attempt, as its steps are put together: what it has sent, and what its numbers of communicators mean."""

from __future__ import annotations

from collections.abc import Mapping, MutableMapping, Sequence
from dataclasses import dataclass, field

from megatronapp.core.trace.membership import Process
from megatronapp.detector import profiles
from megatronapp.detector.profiles import DeviceProfile
from megatronapp.detector.steps import Group
from megatronapp.v1 import trace_pb2

KEPT_NUMBERS = 1024
"""Of one rank's messages, the newest; a repeat that comes later still is known by its step."""
OVERLAP, ON = "overlap-grad-reduce", "on"
"""The flag of Megatron-LM's scripts and of the trainer, as a recipe has it."""
_KEPT = (1 << KEPT_NUMBERS) - 1


@dataclass(slots=True)
class Member:
    """One rank: its process and the communicators that it has named."""

    process: Process
    known: MutableMapping[str, Group]
    """All communicators of the job by id, which is the same on all members: each is kept once."""
    groups: Mapping[int, Group] = field(default_factory=dict)
    """Those that it has named, by its own indices: never changed but replaced, for who keeps what was named until then.
    """
    newest: int = 0
    """Largest number seen."""
    seen: int = 0
    """A bit for each of the newest KEPT_NUMBERS numbers, the lowest for the largest: 160 bytes a rank."""
    missed: int = 0
    profile: DeviceProfile = profiles.GPU
    """Of its device."""
    reduces_beside: bool = False
    """Its recipe says that gradients are reduced beside the backward passes."""

    def repeats(self, number: int) -> bool:
        """Whether a message of this number has come before; from now on it has."""
        behind = self.newest - number
        if behind >= KEPT_NUMBERS:
            return False
        if behind < 0:
            shifted = self.seen << -behind if -behind < KEPT_NUMBERS else 0
            self.seen, self.newest = (shifted | 1) & _KEPT, number
            return False
        known = bool(self.seen >> behind & 1)
        self.seen |= 1 << behind
        return known

    def introduce(self, hello: trace_pb2.Hello) -> None:
        self.name(hello.communicators)
        self.profile = profiles.of_device(hello.device)
        self.reduces_beside = any(s.name == OVERLAP and s.value == ON for s in hello.recipe.settings)

    def name(self, communicators: Sequence[trace_pb2.Communicator]) -> None:
        if not communicators:
            return
        self.groups = {**self.groups, **{c.index: self._group(c) for c in communicators}}

    def _group(self, c: trace_pb2.Communicator) -> Group:
        return self.known.get(c.id) or self.known.setdefault(c.id, Group(c.id, c.kind, tuple(c.ranks)))
