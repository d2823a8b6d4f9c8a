"""The ranks' log lines as people read them. Ranks write JSON, since their output goes to files too."""

from __future__ import annotations

import json

from structlog.dev import ConsoleRenderer

_render = ConsoleRenderer(colors=True, pad_event_to=0)


def readable(line: str) -> str:
    """A JSON log line in words; any other line as it is."""
    if not line.startswith("{"):
        return line
    try:
        event = json.loads(line)
    except json.JSONDecodeError:
        return line
    if not isinstance(event, dict) or not isinstance(event.get("event"), str):
        return line
    event.pop("source", None)
    return str(_render(None, "", event))
