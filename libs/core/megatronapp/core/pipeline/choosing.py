"""When a stage chooses its next operation.

On a GPU the host launches an operation while the one before it runs, so that it chooses a little before that ends, and
knows no more of messages than has come by then.
"""

from __future__ import annotations

from dataclasses import dataclass

from megatronapp.core.errors import UsageError
from megatronapp.core.pipeline.arrays import Whole

CHOOSING_NS = 300_000
"""On H100 hosts it took 0.06 to 0.14 ms; the rest is for a sleep that ends late."""
LAUNCH_NS = 200_000
"""From a choice to its first kernel, where the host is faster than its device."""


@dataclass(frozen=True, slots=True)
class Choosing:
    """lead_ns: how long before the running operation ends, also by (stage, lane of that operation). launch_ns: from a
    choice to its first kernel, for which a stage that was idle waits. host_ns: what the host takes to launch all of an
    operation, also by (stage, lane): it makes no choice meanwhile, and the operation does not end before. What is run
    in a given order is launched as soon as the host can, whatever its device does. Raises UsageError."""

    lead_ns: int | Whole = 0
    launch_ns: int = 0
    host_ns: int | Whole = 0

    def __post_init__(self) -> None:
        given = [each for each in (self.lead_ns, self.launch_ns, self.host_ns) if isinstance(each, int)]
        if min(given, default=0) < 0:
            raise UsageError("choices are made and launched in no less than no time")


FREE = Choosing()
"""Made when they are needed, and cost nothing: as on a CPU."""
