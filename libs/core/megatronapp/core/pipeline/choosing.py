"""When a stage chooses its next operation, and what its host takes to launch it.

On a GPU the host launches an operation while the one before it runs, so that it chooses a little before that ends, and
knows no more of messages than has come by then.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from megatronapp.core.errors import UsageError
from megatronapp.core.pipeline.arrays import PassTimes, Whole
from megatronapp.core.pipeline.operations import Kind
from megatronapp.core.pipeline.placement import Layout

CHOOSING_NS = 300_000
"""On H100 hosts it took 0.06 to 0.14 ms; the rest is for a sleep that ends late."""
LAUNCH_NS = 200_000
"""From a choice to its first kernel, where the host is faster than its device."""
PASSES_NS = (5_000_000, 5_000_000, 1_000_000)
"""To launch F, B and W of a chunk of two layers: what hosts of H100s took, some of which had 4 to 8.5 ms for F."""


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


@dataclass(frozen=True, slots=True, kw_only=True)
class Host:
    """Of a stage on a GPU. passes_ns: what launching F, B and W of a chunk takes; with `keeps_up` no more than its
    device takes for them, as where their times were measured on one. launch_ns as in Choosing, and lead_ns; None: as
    the trainer chooses, as long ahead as launching takes. Raises UsageError."""

    passes_ns: tuple[int, int, int] = (0, 0, 0)
    keeps_up: bool = False
    launch_ns: int = 0
    lead_ns: int | None = None

    def __post_init__(self) -> None:
        if min(*self.passes_ns, self.launch_ns, self.lead_ns or 0) < 0:
            raise UsageError("choices are made and launched in no less than no time")

    def choosing(self, layout: Layout, times: PassTimes) -> Choosing:
        """times: of F, B and W in ns by (pass, stage, chunk). Without the split B launches W, too."""
        passes = np.broadcast_to(np.array(self.passes_ns)[:, None, None], times.shape)
        passes = np.minimum(passes, times) if self.keeps_up else passes
        if not layout.split:
            passes = np.stack([passes[Kind.FORWARD], passes[Kind.BACKWARD] + passes[Kind.WGRAD]])
        host_ns = np.rint(passes.transpose(1, 0, 2)).astype(np.int64).reshape(layout.stages, layout.lanes)
        longest = np.maximum(host_ns.max(axis=1, keepdims=True), self.launch_ns)
        lead_ns = longest + CHOOSING_NS if self.lead_ns is None else self.lead_ns
        return Choosing(lead_ns, self.launch_ns, host_ns)
