"""What is attacked, and how: inputs made of a seed, one after the other, and what must hold whatever they are.

A target raises from `execute` what must not happen. `check` looks whether the innocent that works beside the attack is
unharmed. The same seed makes the same input: what failed is replayed by `python -m bench.attack --replay`.
"""

from __future__ import annotations

import asyncio
import random
import resource
from pathlib import Path
from typing import Protocol

HANG_SECONDS = 60.0
"""No input takes so long but one that hangs: most take a millisecond."""


class Harm(AssertionError):  # noqa: N818
    """Something that must not happen has happened."""


class Target(Protocol):
    name: str
    at_once: int
    """Inputs that may be under way together: what waits for a disk or another service need not be waited for alone."""

    async def start(self, folder: Path) -> None: ...

    async def execute(self, chance: random.Random) -> None:
        """One input. Raises Harm, or whatever a service would have failed with."""

    async def check(self) -> None:
        """Raises Harm when the innocent is harmed or the service is not ready."""

    async def stop(self) -> None: ...


async def attack(target: Target, seed: int) -> None:
    """One input of this seed; raises Harm."""
    try:
        async with asyncio.timeout(HANG_SECONDS):
            await target.execute(random.Random(f"{target.name}-{seed}"))
    except TimeoutError as error:
        raise Harm(f"{target.name} {seed}: it hangs") from error


def resident_bytes() -> int:
    """Of this process."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * resource.getpagesize()
