"""How urgent something is."""

from __future__ import annotations

from enum import StrEnum


class Level(StrEnum):
    """P0 calls people at any hour, P1 pages, P2 is for the working day, P3 is a ticket."""

    P0 = "P0"
    P1 = "P1"
    P2 = "P2"
    P3 = "P3"

    def reaches(self, threshold: Level) -> bool:
        """Whether this is as urgent as the threshold, or more."""
        return self <= threshold


def level_of(severity: str) -> Level:
    """An alert's severity; one of another vocabulary is P2, so that it is neither lost nor wakes anybody."""
    try:
        return Level(severity)
    except ValueError:
        return Level.P2
