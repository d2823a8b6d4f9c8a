"""A `.mscope` file: a header of 4 KiB, then entries in the order in which a viewer got them. Little-endian.

| bytes | |
|---|---|
| 8 | `MSCOPE`, version (u16, 1) |
| 4088 | the header as JSON, filled up with spaces |
| 16, then `size` | an entry: u32 size, u8 kind, 3 × 0, u64 microseconds since the begin; its content |

An entry is what the viewer asked for (ScopeSubscribe), a text (ScopeServerMessage), both as proto3-JSON, or a frame
(core.scope.frame), whose subscription is one that was asked for before. A file may come from anybody: nothing of it is
used before all of it has been read.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass
from enum import IntEnum
from typing import Annotated, BinaryIO, NamedTuple, TypeVar

from google.protobuf import json_format
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from megatronapp.core.errors import DataError
from megatronapp.core.scope.frame import MAX_FRAME_BYTES, unpack
from megatronapp.core.scope.megascope import read
from megatronapp.v1 import scope_pb2

MAGIC = b"MSCOPE\x01\x00"
HEADER_BYTES = 4096
MAX_TEXT_BYTES = 4 << 20
"""A generation's first event has the tokens of all its prompts; a description the sites of a large model."""
MAX_ENTRIES = 500_000
MAX_SUBSCRIPTIONS = 256
"""Different ones of one file."""
MAX_MICROSECONDS = 24 * 3600 * 1_000_000
MAX_VIEW = 2000
_ENTRY = struct.Struct("<IB3xQ")
ENTRY_BYTES = _ENTRY.size
REPLAYED = frozenset({"description", "event", "stall"})
"""Texts of a recording that are sent again as they were; an answer to a subscription is, when it is asked for."""

Name = Annotated[str, Field(max_length=200)]
Text = TypeVar("Text", scope_pb2.ScopeSubscribe, scope_pb2.ScopeServerMessage)


class Kind(IntEnum):
    ASKED = 1
    TEXT = 2
    FRAME = 3


KINDS = frozenset(int(kind) for kind in Kind)


class Header(BaseModel):
    model_config = ConfigDict(frozen=True, extra="ignore", allow_inf_nan=False)

    name: Name = ""
    run: Name = ""
    job: Name = ""
    by: Name = ""
    """Who made it."""
    view: Annotated[str, Field(max_length=MAX_VIEW)] = ""
    """The page's address, path and query."""
    snapshot: bool = False
    """One moment."""
    recorded_unix_seconds: Annotated[float, Field(ge=0, le=1e11)] = 0.0
    seconds: Annotated[float, Field(ge=0, le=MAX_MICROSECONDS / 1e6)] = 0.0
    frames: Annotated[int, Field(ge=0, le=MAX_ENTRIES)] = 0
    events: Annotated[int, Field(ge=0, le=MAX_ENTRIES)] = 0

    def packed(self) -> bytes:
        """Raises DataError for one that is longer than its place."""
        text = self.model_dump_json().encode()
        if len(text) > HEADER_BYTES - len(MAGIC):
            raise DataError("the names in a recording's header are too long")
        return MAGIC + text.ljust(HEADER_BYTES - len(MAGIC))


class Asked(NamedTuple):
    """What subscriptions are told apart by."""

    expression: str
    """In canonical form."""
    request: str


@dataclass(frozen=True, slots=True)
class Entry:
    at_us: int
    kind: Kind
    offset: int
    size: int
    asked: Asked | None = None
    """Of a frame, or of the answer to a subscription."""
    replaces: tuple[int, ...] = ()
    """Of a frame: a later one of the same subscription with the same takes its place."""


@dataclass(frozen=True)
class Index:
    """All of a file but its contents, which stay there."""

    header: Header
    entries: list[Entry]
    subscriptions: dict[Asked, scope_pb2.ScopeSubscribe]

    @property
    def seconds(self) -> float:
        return self.entries[-1].at_us / 1e6 if self.entries else 0.0


def packed_entry(kind: Kind, at_us: int, content: bytes) -> bytes:
    return _ENTRY.pack(len(content), kind, at_us) + content


def asked_of(subscribe: scope_pb2.ScopeSubscribe) -> Asked:
    """Raises DataError (an ExpressionError) for what is no expression."""
    return Asked(str(read(subscribe.expression)), subscribe.request)


def read_header(file: BinaryIO) -> Header:
    """Raises DataError."""
    data = file.read(HEADER_BYTES)
    if len(data) != HEADER_BYTES or not data.startswith(MAGIC[:6]):
        raise DataError("this is no recording of MegaScope (.mscope)")
    if data[: len(MAGIC)] != MAGIC:
        raise DataError("the recording was made by a newer version; update the platform to show it")
    try:
        return Header.model_validate_json(data[len(MAGIC) :])
    except ValidationError as error:
        raise DataError("the recording's header can't be read") from error


def read_index(file: BinaryIO, *, cut_off: bool = False) -> Index:
    """Read and check all of it, from the file's begin. `cut_off`: whoever wrote it was ended meanwhile; what came last
    may be missing. Raises DataError."""
    reader = _Reader(read_header(file))
    try:
        for entry, content in _entries(file):
            reader.take(entry, content)
    except _CutOffError as error:
        if not cut_off:
            raise DataError(str(error)) from error
    return Index(reader.header, reader.entries, reader.subscriptions)


class _CutOffError(Exception):
    """The file ends within an entry."""


def _entries(file: BinaryIO) -> Iterator[tuple[Entry, bytes]]:
    offset = HEADER_BYTES
    while head := file.read(ENTRY_BYTES):
        if len(head) < ENTRY_BYTES:
            raise _CutOffError(f"the recording ends within an entry, at byte {offset}")
        size, number, at_us = _ENTRY.unpack(head)
        if number not in KINDS or size > (MAX_FRAME_BYTES if number == Kind.FRAME else MAX_TEXT_BYTES):
            raise DataError(f"the recording has no entry at byte {offset}")
        content = file.read(size)
        if len(content) < size:
            raise _CutOffError(f"the recording ends within an entry, at byte {offset}")
        yield Entry(at_us, Kind(number), offset + ENTRY_BYTES, size), content
        offset += ENTRY_BYTES + size


class _Reader:
    def __init__(self, header: Header) -> None:
        self.header = header
        self.entries: list[Entry] = []
        self.subscriptions: dict[Asked, scope_pb2.ScopeSubscribe] = {}
        self._open: dict[int, Asked] = {}
        """By the viewer's number, which may come to mean something else."""

    def take(self, entry: Entry, content: bytes) -> None:
        """Raises DataError."""
        before = self.entries[-1].at_us if self.entries else 0
        if not before <= entry.at_us <= MAX_MICROSECONDS:
            raise DataError(f"the times of the recording go backwards, or beyond a day, at byte {entry.offset}")
        if len(self.entries) >= MAX_ENTRIES:
            raise DataError(f"the recording has more than {MAX_ENTRIES} entries")
        match entry.kind:
            case Kind.ASKED:
                self._ask(content)
            case Kind.TEXT:
                self._text(entry, content)
            case Kind.FRAME:
                self._frame(entry, content)

    def _ask(self, content: bytes) -> None:
        subscribe = parsed(content, scope_pb2.ScopeSubscribe())
        asked = asked_of(subscribe)
        self._open[subscribe.id] = asked
        self.subscriptions.setdefault(asked, subscribe)
        if len(self._open) > MAX_SUBSCRIPTIONS or len(self.subscriptions) > MAX_SUBSCRIPTIONS:
            raise DataError(f"the recording has more than {MAX_SUBSCRIPTIONS} subscriptions")

    def _text(self, entry: Entry, content: bytes) -> None:
        message = parsed(content, scope_pb2.ScopeServerMessage())
        kind = message.WhichOneof("body")
        if kind in REPLAYED:
            self.entries.append(entry)
        elif kind == "subscribed" and message.subscribed.id in self._open:
            self.entries.append(
                Entry(entry.at_us, entry.kind, entry.offset, entry.size, self._open[message.subscribed.id])
            )
        else:
            raise DataError(f"the recording has a text that is none of a viewer's, at byte {entry.offset}")

    def _frame(self, entry: Entry, content: bytes) -> None:
        frame = unpack(content)
        asked = self._open.get(frame.subscription)
        if asked is None:
            raise DataError(f"a frame of the recording belongs to no subscription, at byte {entry.offset}")
        layer = -1 if frame.layer is None else frame.layer
        replaces = (layer, frame.step) if frame.request else (layer,)
        self.entries.append(Entry(entry.at_us, entry.kind, entry.offset, entry.size, asked, replaces))


def parsed(content: bytes, message: Text) -> Text:
    """Raises DataError."""
    try:
        return json_format.Parse(content, message, ignore_unknown_fields=True, max_recursion_depth=20)
    except (json_format.ParseError, UnicodeError, RecursionError, ValueError) as error:
        raise DataError("a text of the recording can't be read") from error
