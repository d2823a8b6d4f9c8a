"""Requests, controls and events of generation as JSON: one object each, whose `type` names the class."""

from __future__ import annotations

import base64
import dataclasses
import json
import re
import typing
from typing import Any

from pydantic import ConfigDict, TypeAdapter, ValidationError

from megatronapp.core import generation
from megatronapp.core.errors import DataError, UsageError
from megatronapp.core.generation import Command, Control, Event, GenerationRequest
from megatronapp.core.scope.intervention import Intervention

_COMMANDS: dict[str, type[Command]] = {"request": GenerationRequest, "control": Control}
_STRICT = ConfigDict(extra="forbid", strict=True)
for _class in (generation.Sampling, Intervention, *_COMMANDS.values()):
    _class.__pydantic_config__ = _STRICT  # type: ignore[union-attr]
_EVENTS: tuple[type[Event], ...] = typing.get_args(Event)
_LENIENT = ConfigDict(extra="ignore", strict=True, val_json_bytes="base64")
"""A newer rank may say more than is known here."""
for _part in (*_EVENTS, generation.Token, generation.Candidate, generation.Beam):
    _part.__pydantic_config__ = _LENIENT  # type: ignore[union-attr]
_ADAPTERS = {name: TypeAdapter(kind) for name, kind in _COMMANDS.items()}
_NAMES = {kind: name for name, kind in _COMMANDS.items()} | {
    kind: re.sub(r"(?<!^)(?=[A-Z])", "_", kind.__name__).lower() for kind in _EVENTS
}
_EVENT_ADAPTERS = {_NAMES[kind]: TypeAdapter(kind) for kind in _EVENTS}


def to_json(value: Command | Event) -> str:
    """One line."""
    return json.dumps({"type": _NAMES[type(value)], **_plain(value)}, allow_nan=False)


def command_from_json(text: str | bytes) -> Command:
    """A request where no `type` is given. Raises UsageError, in one line, whatever the text is."""
    try:
        document = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise UsageError(f"no JSON: {str(error)[:200]}") from error
    if not isinstance(document, dict):
        raise UsageError('a request is a JSON object, such as {"prompts": ["Once"]}')
    name = document.pop("type", "request")
    if not isinstance(name, str) or name not in _COMMANDS:
        raise UsageError(f"type {str(name)[:40]!r}: take one of {', '.join(_COMMANDS)}")
    try:
        command: Command = _ADAPTERS[name].validate_json(json.dumps(document))
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        where = ".".join(str(part) for part in first["loc"][:2])
        raise UsageError(f"{where}: {first['msg']}"[:300]) from error
    return command


def event_from_json(text: str | bytes) -> Event:
    """Raises DataError, in one line, whatever the text is."""
    try:
        document = json.loads(text)
        name = document.pop("type")
        event: Event = _EVENT_ADAPTERS[name].validate_json(json.dumps(document))
    except (ValueError, RecursionError, AttributeError, KeyError, TypeError) as error:
        raise DataError(f"no event of a generation: {type(error).__name__}") from error
    return event


def _plain(value: Any) -> Any:
    if isinstance(value, Intervention):  # of many fields few are given, and there may be many of them
        given = {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}
        return {name: _plain(each) for name, each in given.items() if each not in ("", (), False)}
    if dataclasses.is_dataclass(value):
        return {field.name: _plain(getattr(value, field.name)) for field in dataclasses.fields(value)}
    if isinstance(value, tuple):
        return [_plain(each) for each in value]
    return base64.b64encode(value).decode() if isinstance(value, bytes) else value
