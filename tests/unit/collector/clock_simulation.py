"""A job's collectives as several free-running clocks would record them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from megatronapp.collector.align import Alignment, Anchors

SECOND = 1_000_000_000
ALL_REDUCE, ALL_GATHER = 0, 1


@dataclass
class Simulation:
    """`clocks` clocks in groups of two by data and one over all; times in ns."""

    clocks: int = 8
    offset_ns: float = 200_000
    drift: float = 5e-6
    noise_ns: float = 3_000
    asymmetry: Callable[[int, npt.NDArray[np.int64]], npt.NDArray[np.float64]] | None = None
    """(kind, clocks) → by how much each member's end lies systematically late."""
    lost_ratio: float = 0.0
    seed: int = 0
    rng: np.random.Generator = field(init=False)

    def __post_init__(self) -> None:
        self.rng = np.random.default_rng(self.seed)
        self.offsets = self.rng.normal(0, self.offset_ns, self.clocks)
        self.drifts = self.rng.normal(0, self.drift, self.clocks)

    def deviation(self, at_ns: float) -> npt.NDArray[np.float64]:
        """Each clock's true error."""
        return np.asarray(self.offsets + self.drifts * at_ns, np.float64)

    def groups(self) -> list[npt.NDArray[np.int64]]:
        everyone = np.arange(self.clocks)
        half = self.clocks // 2
        return [np.array([clock, clock + half]) for clock in range(half)] + [everyone]

    def step(self, number: int) -> Anchors:
        """One second per step, with eight collectives of each kind in each group."""
        rows: dict[str, list[npt.NDArray[np.int64]]] = {name: [] for name in ("group", "kind", "seq", "clock", "end")}
        count = 0
        for repeat in range(8):
            for members in self.groups():
                for kind in (ALL_REDUCE, ALL_GATHER):
                    here = members[self.rng.random(len(members)) >= self.lost_ratio]
                    at = number * SECOND + repeat * SECOND // 10
                    end = at + self.deviation(at)[here] + self.rng.normal(0, self.noise_ns, len(here))
                    if self.asymmetry:
                        end = end + self.asymmetry(kind, here)
                    rows["group"].append(np.full(len(here), count))
                    rows["kind"].append(np.full(len(here), kind))
                    rows["seq"].append(np.full(len(here), number * 100 + repeat + 1))
                    rows["clock"].append(here)
                    rows["end"].append(np.rint(end).astype(np.int64))
                    count += bool(len(here))
        joined = {name: np.concatenate(parts) for name, parts in rows.items()}
        return Anchors(joined["group"], joined["kind"], joined["seq"], joined["clock"], joined["end"])

    def error(self, alignment: Alignment, at_ns: int) -> float:
        """Largest true disagreement between two clocks after correction."""
        deviation = self.deviation(at_ns)
        corrected = deviation + [alignment.correction(clock, at_ns) for clock in range(self.clocks)]
        return float(np.ptp(corrected))

    def run(self, alignment: Alignment, first: int, last: int) -> None:
        alignment.grow(self.clocks)
        for number in range(first, last):
            alignment.observe(self.step(number))
