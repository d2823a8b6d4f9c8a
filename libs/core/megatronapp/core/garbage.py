"""How often Python looks for garbage that refers to itself; all other is freed at once."""

from __future__ import annotations

import gc


def collect_seldom(young_objects: int) -> None:
    """For a service that keeps many objects: look once there are so many new ones, and never at its modules, among
    which Python would look again and again."""
    gc.freeze()
    gc.set_threshold(young_objects, 10, 10)
