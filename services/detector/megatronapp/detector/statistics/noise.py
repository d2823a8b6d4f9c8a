"""Noise: what is known of a signal before the job has shown it."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Noise:
    """What is known of a signal before the job has shown its own noise."""

    floor: float
    """Standard deviation of a step, never taken to be smaller."""
    prior: float
    """The same while the history is too short to tell."""
    clip: float
    """Residuals count for at most so many standard deviations, and for less where the job's tails are heavier."""
    allowance: float
    """A constant offset that healthy items may have; inf: only a change is judged."""
    smallest: float
    """Effects below are never worth a finding, however certain."""
    changes: bool = True
    """False: only the offset is judged, never a change against the item's own history."""
    peers: bool = False
    """Values are offsets from peers that do the same work: their spread says what is usual (offsets.py)."""
    together: bool = False
    """A fault may make most items slow at once, as a switch does its links: that most are slow does not excuse them."""
    wanders: bool = False
    """Without a fault it is off for tens of steps by as much as a fault: few items wait until they know by how much."""
    bursts: bool = False
    """Nothing in most steps and much in some: the upper tail is the scale."""
