"""Recordings that say nothing of where they were made: stacks and settings name files as from the checkout, a package's
as from where it is installed."""

from __future__ import annotations

import re
from pathlib import Path

from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import Message

from megatronapp.core.trace import file

CHECKOUT = Path(__file__).resolve().parents[2]
INSTALLED = re.compile(r"/[^\s\"']*/(?:site-packages|python3\.\d+)/")


def leave_out(traces: Path) -> None:
    """In each of the files below a trace folder, in place."""
    recorded_in = str(traces.resolve().parent)
    for path in sorted(traces.rglob("rank-*.pb")):
        messages = list(file.read(path))
        with path.open("wb") as written:
            for message in messages:
                _rewrite(message, recorded_in)
                file.write(written, message)


def _rewrite(message: Message, recorded_in: str) -> None:
    for field, value in message.ListFields():
        if field.type == FieldDescriptor.TYPE_STRING:
            if field.is_repeated:
                value[:] = [_without(text, recorded_in) for text in value]
            else:
                setattr(message, field.name, _without(value, recorded_in))
        elif field.type == FieldDescriptor.TYPE_MESSAGE:
            for inner in value if field.is_repeated else (value,):
                _rewrite(inner, recorded_in)


def _without(text: str, recorded_in: str) -> str:
    for folder in (recorded_in, str(CHECKOUT)):
        text = text.replace(f"{folder}/", "")
    return INSTALLED.sub("", text)
