"""What is attacked, and how: inputs made of a seed, one after the other, and what must hold whatever they are.

A target raises from `execute` what must not happen. `check` looks whether the innocent that works beside the attack is
unharmed. The same seed makes the same input: what failed is replayed by `python -m bench.attack --replay`.
"""

from __future__ import annotations

import asyncio
import random
import resource
from pathlib import Path
from typing import Any, Protocol

HANG_SECONDS = 60.0
"""No input takes so long but one that hangs: most take a millisecond."""

MOST_BYTES = 4 << 30
"""Of memory for some kilobytes of input: without a limit one of them would take the machine along, and nothing would
tell which."""

END_SECONDS = 5.0
"""One that is told to end does so."""


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
    """One input of this seed; raises Harm. One that can't be ended is harm as well, and not waited for."""
    task = asyncio.create_task(target.execute(random.Random(f"{target.name}-{seed}")))
    try:
        ended, _ = await asyncio.wait({task}, timeout=HANG_SECONDS)
        if not ended:
            raise Harm(f"{target.name} {seed}: it hangs, {_standing(task)}")
        task.result()
    finally:
        if task.cancel():
            await asyncio.wait({task}, timeout=END_SECONDS)


def _standing(task: asyncio.Task[None]) -> str:
    """Where it waits, the innermost frame first."""
    places: list[str] = []
    waiting: Any = task.get_coro()
    while waiting is not None:
        frame = getattr(waiting, "cr_frame", None) or getattr(waiting, "ag_frame", None)
        if frame is not None:
            places.append(f"{Path(frame.f_code.co_filename).name}:{frame.f_lineno} {frame.f_code.co_name}")
        waiting = getattr(waiting, "cr_await", None) or getattr(waiting, "ag_await", None)
    return " in ".join(reversed(places))


def resident_bytes() -> int:
    """Of this process."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * resource.getpagesize()
