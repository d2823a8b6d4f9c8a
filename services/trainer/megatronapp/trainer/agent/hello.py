"""What a rank says first, checked: who it is, what its numbers mean, and where its trace goes."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from megatronapp.core.errors import DataError
from megatronapp.core.trace import values
from megatronapp.core.trace.validate import check_message
from megatronapp.core.trace.wire import from_document, to_proto
from megatronapp.trainer.agent.spans import SpanNames
from megatronapp.v1 import trace_pb2

_ADDRESS = re.compile(r"[A-Za-z0-9.:\[\]_-]{1,255}:\d{1,5}")
MAX_PATH = 4096


@dataclass(frozen=True, slots=True)
class RankHello:
    message: values.Hello
    names: SpanNames
    control: values.TraceControl
    """In force when it was said."""
    collector_address: str
    """host:port; empty: no collector."""
    folder: Path | None
    """Where trace files go; None: nowhere."""
    scope: Any = None
    """What the rank shows of its model, unread; None: nothing."""
    stacks: Any = None
    """How it is asked for its stacks, unread; None: it can't be."""
    flight_recorder: Any = None
    """How PyTorch's flight recorder is asked, unread; None: it can't be."""

    @classmethod
    def parse(cls, document: Any) -> RankHello:
        """Raises DataError."""
        hello = from_document(values.Hello, document)
        check_message(trace_pb2.TraceMessage(hello=to_proto(hello)))
        return cls(
            message=hello,
            names=SpanNames.parse(document.get("spans")),
            control=from_document(values.TraceControl, document.get("control")),
            collector_address=_address(document.get("collector_address", "")),
            folder=_folder(document.get("trace_dir", "")),
            scope=document.get("scope"),
            stacks=document.get("stacks"),
            flight_recorder=document.get("flight_recorder"),
        )


def _address(address: Any) -> str:
    if address == "" or (isinstance(address, str) and _ADDRESS.fullmatch(address)):
        return str(address)
    raise DataError(f"a collector's address {address!r:.100}; it must be host:port")


def _folder(folder: Any) -> Path | None:
    if folder == "":
        return None
    if isinstance(folder, str) and len(folder) <= MAX_PATH and "\0" not in folder and Path(folder).is_absolute():
        return Path(folder)
    raise DataError(f"a trace folder {folder!r:.100}; it must be an absolute path")
