"""`podTemplate` laid over a rendered template, as Kubernetes' strategic merge does with the lists of a pod."""

from __future__ import annotations

from typing import Any

from megatronapp.core.trainingjob.pod_template import MERGE_KEYS


def overlaid(base: dict[str, Any], overlay: dict[str, Any]) -> dict[str, Any]:
    """A new object. None takes a key out."""
    found = dict(base)
    for key, value in overlay.items():
        if value is None:
            found.pop(key, None)
        elif isinstance(value, dict) and isinstance(found.get(key), dict):
            found[key] = overlaid(found[key], value)
        elif key in MERGE_KEYS and isinstance(value, list) and isinstance(found.get(key), list):
            found[key] = _merged(found[key], value, MERGE_KEYS[key])
        else:
            found[key] = value
    return found


def _merged(base: list[Any], overlay: list[Any], key: str) -> list[Any]:
    """Items of the overlay into those of the same key; new ones at the end."""
    given = {item.get(key): item for item in overlay if isinstance(item, dict)}
    merged = [overlaid(item, given.pop(item.get(key), {})) for item in base]
    return [*merged, *given.values()]
