"""Plain values (values.py) ⇄ protobuf messages and JSON documents. Field names are the same in all three."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from enum import IntEnum
from typing import Any, TypeVar, get_args, get_type_hints

from google.protobuf.message import Message

from megatronapp.core.errors import DataError
from megatronapp.core.trace import values
from megatronapp.v1 import trace_pb2

Value = TypeVar("Value")

MESSAGES: Mapping[type[Any], type[Message]] = {
    value: getattr(trace_pb2, value.__name__)
    for value in (
        values.Identity,
        values.ParallelSizes,
        values.Placement,
        values.Schedule,
        values.Communicator,
        values.Progress,
        values.Evaluation,
        values.Memory,
        values.Setting,
        values.Recipe,
        values.Hello,
        values.TraceControl,
    )
}


def to_proto(value: Any) -> Any:
    """The message of a value; None and what is empty stay unset."""
    return MESSAGES[type(value)](**{name: _field(content) for name, content in _content(value) if content is not None})


def to_document(value: Any) -> Any:
    """The value as JSON has it."""
    if is_dataclass(value):
        return {name: to_document(content) for name, content in _content(value)}
    if isinstance(value, tuple):
        return [to_document(each) for each in value]
    return value


def from_document(kind: type[Value], document: Any) -> Value:
    """A value of this kind. Raises DataError for a document that is none; a field that is not known is left out."""
    if not isinstance(document, Mapping):
        raise DataError(f"{kind.__name__} must be an object, not {type(document).__name__}")
    hints = get_type_hints(kind)
    known = {name: _parsed(hints[name], document[name]) for name in hints if name in document}
    try:
        return kind(**known)
    except TypeError as error:
        raise DataError(f"{kind.__name__}: {error}") from error


def _content(value: Any) -> list[tuple[str, Any]]:
    return [(field.name, getattr(value, field.name)) for field in fields(value)]


def _field(content: Any) -> Any:
    if is_dataclass(content):
        return to_proto(content)
    if isinstance(content, tuple):
        return [_field(each) for each in content]
    return content


def _parsed(hint: Any, content: Any) -> Any:
    if is_dataclass(hint):
        return from_document(hint, content)  # type: ignore[arg-type]
    choices = get_args(hint)
    if choices and choices[-1] is Ellipsis:
        if not isinstance(content, list):
            raise DataError(f"a list is needed, not {type(content).__name__}")
        return tuple(_parsed(choices[0], each) for each in content)
    kinds = choices or (hint,)
    if float in kinds and type(content) is int:
        return float(content)
    for kind in kinds:
        if type(content) is kind:
            return content
        if isinstance(kind, type) and issubclass(kind, IntEnum) and type(content) is int:
            return content if content not in set(kind) else kind(content)
    raise DataError(f"{content!r:.100} where {getattr(hint, '__name__', hint)} is needed")
