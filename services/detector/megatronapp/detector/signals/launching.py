"""Launching: the pace of GPU ranks whose device waits for its host, which a slow host sets and not a slow device."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from megatronapp.detector.signals import matrix, peers
from megatronapp.detector.steps import Floats, Ints

MOSTLY = 0.5
"""Above this share of its passes' time a rank counts as starved."""
SOMETIMES = 0.1
"""Above this share its other passes may be starved a little, too: as much as the recorder's mark leaves open. The first
pass of a step often is, and alone says nothing of the others: it is one of sixteen or so."""
BLUR = 0.1
"""Effect that this alone may have. A pass is marked as starved when its device was behind its host by less than a tenth
of it at the end (trainer.agent.summary): one that is not marked may hold that much of waiting."""


@dataclass(frozen=True, slots=True)
class Launching:
    """Arrays of one entry a rank."""

    share: Floats
    """Share of the passes' time in which the device had next to nothing queued; nan: no passes."""
    pace: Floats
    """log of the mean seconds of the rank's passes, each operation weighing by its usual time."""
    beside_peers: Floats
    """pace less that of the median same-stage peer; nan without peers."""
    fastest: Floats
    """As pace, of the rank's fastest passes, which have waited least."""
    fastest_beside_peers: Floats

    def trusted(self, log_effect: Floats, fastest: Floats) -> Floats:
        """Where a rank is starved now and then, its other spans may be a little, too: small effects are none, beyond
        the slowness that its fastest passes show as well. fastest: their log-effect, nan: not known."""
        shown = np.clip(np.nan_to_num(fastest), 0.0, np.maximum(log_effect, 0.0))
        return np.where(self._blurred(log_effect), shown, log_effect)

    def _blurred(self, log_effect: Floats) -> npt.NDArray[np.bool_]:
        return self.waits_for_host & (np.abs(log_effect) < BLUR)

    @property
    def waits_for_host(self) -> npt.NDArray[np.bool_]:
        """Ranks whose device waits for its host now and then. Of an optimizer this does not always show: its last
        kernels may be its longest, so that the device is behind its host at the end all the same."""
        waits: npt.NDArray[np.bool_] = np.nan_to_num(self.share) > SOMETIMES
        return waits

    @property
    def late(self) -> bool:
        """Whether a rank has been late for its host's sake, in part of its passes at least."""
        return bool(np.any(np.nan_to_num(self.share) > SOMETIMES / 2))

    @property
    def starved(self) -> npt.NDArray[np.bool_]:
        return np.nan_to_num(self.share) > MOSTLY


def of_passes(compute: matrix.Compute, stage: Ints, healthy: npt.NDArray[np.bool_]) -> Launching:
    """stage: of each rank; healthy: ranks that others may be compared with."""
    elapsed = np.nansum(compute.elapsed, axis=1)
    device = np.nansum(compute.seconds, axis=1)
    pace, beside_peers = _pace(compute.elapsed / np.maximum(compute.passes, 1), stage, healthy)
    with np.errstate(divide="ignore", invalid="ignore"):
        share = np.where(elapsed > 0, 1 - device / elapsed, np.nan)
    return Launching(share, pace, beside_peers, *_pace(compute.fastest, stage, healthy))


def _pace(seconds: Floats, stage: Ints, healthy: npt.NDArray[np.bool_]) -> tuple[Floats, Floats]:
    """log of the seconds (ranks × keys) of a pass of each key; and beside the median same-stage peer."""
    total = np.nansum(seconds, axis=1)
    reference = peers.beside_stage_peers(seconds, stage, healthy)
    beside = np.where(np.isfinite(seconds) & np.isfinite(reference), reference, 0.0).sum(axis=1)
    with np.errstate(divide="ignore", invalid="ignore"):
        pace = np.where(total > 0, np.log(total), np.nan)
        return pace, np.where(beside > 0, pace - np.log(beside), np.nan)
