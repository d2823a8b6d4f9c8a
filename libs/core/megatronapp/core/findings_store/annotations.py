"""What people say of a finding: that they look at it, that it is silenced, a comment. Kept as long as the finding."""

from __future__ import annotations

from collections.abc import Iterable
from enum import StrEnum

from pydantic import Field, ValidationError

from megatronapp.core.errors import DataError
from megatronapp.core.findings import Value
from megatronapp.core.trace.limits import MAX_TIME_NS

MAX_ANNOTATIONS = 200
"""Of one finding, the newest."""
MAX_ANNOTATION_BYTES = 32 << 10


class AnnotationKind(StrEnum):
    COMMENT = "comment"
    ACKNOWLEDGE = "acknowledge"
    """Somebody looks at it."""
    UNACKNOWLEDGE = "unacknowledge"
    SILENCE = "silence"
    """No notifications of it until a time."""
    UNSILENCE = "unsilence"


class Annotation(Value):
    id: str = Field(max_length=64)
    finding: str = Field(max_length=128)
    kind: AnnotationKind
    by: str = Field(max_length=256, description="a person's name, or a role where nobody is named")
    unix_ns: int = Field(ge=0, le=MAX_TIME_NS)
    text: str = Field(default="", max_length=4096)
    until_unix_ns: int = Field(default=0, ge=0, le=MAX_TIME_NS, description="of a silence; 0: of none")
    silence: str = Field(default="", max_length=128, description="the silence's id in Alertmanager")


def encode_annotation(annotation: Annotation) -> bytes:
    return annotation.model_dump_json().encode(errors="replace")


def decode_annotation(body: bytes) -> Annotation:
    """Raises DataError for what is none."""
    if len(body) > MAX_ANNOTATION_BYTES:
        raise DataError(f"an annotation of {len(body)} bytes; {MAX_ANNOTATION_BYTES} are the most")
    try:
        return Annotation.model_validate_json(body)
    except (ValidationError, ValueError) as error:
        raise DataError(f"{len(body)} bytes are no annotation") from error


def acknowledged(annotations: Iterable[Annotation]) -> Annotation | None:
    """The acknowledgement that holds, of a finding's annotations in their order."""
    return _in_force(annotations, AnnotationKind.ACKNOWLEDGE, AnnotationKind.UNACKNOWLEDGE)


def silenced(annotations: Iterable[Annotation], now_unix_ns: int) -> Annotation | None:
    """The silence that holds."""
    newest = _in_force(annotations, AnnotationKind.SILENCE, AnnotationKind.UNSILENCE)
    return newest if newest is not None and newest.until_unix_ns > now_unix_ns else None


def _in_force(annotations: Iterable[Annotation], kind: AnnotationKind, against: AnnotationKind) -> Annotation | None:
    """The newest of a kind that none of the other has taken back."""
    newest = None
    for annotation in annotations:
        if annotation.kind is kind:
            newest = annotation
        elif annotation.kind is against:
            newest = None
    return newest
