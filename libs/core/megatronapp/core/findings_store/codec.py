"""A finding as bytes, checked on the way in and on the way out: a store may hold what somebody else put there."""

from __future__ import annotations

import re
from collections.abc import Iterable

from google.protobuf.message import DecodeError, EncodeError

from megatronapp.core.errors import DataError
from megatronapp.core.findings import MAX_DEVICES, Evidence, Finding
from megatronapp.core.findings_store.base import MAX_FINDING_BYTES
from megatronapp.core.trace.limits import MAX_LABEL, MAX_STEP, MAX_TIME_NS, MAX_WORLD, RANK_CHARACTERS
from megatronapp.core.trace.validate import check_identity
from megatronapp.v1 import findings_pb2, trace_pb2

MAX_TEXT = 1 << 15
"""Characters of a summary, an advice, a reason; some hundreds as a rule."""
MAX_EVIDENCE = 64
"""Reasons of one finding; there are some twenty signals."""
_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}")


def encode(finding: Finding) -> bytes:
    """Raises DataError for a finding that can't be true or is too large."""
    try:
        _check(finding)
        body = finding.to_proto().SerializeToString()
    except (ValueError, TypeError, EncodeError) as error:
        raise DataError(f"finding {finding.id!r} can't be written: {error}") from error
    return _bounded(body)


def decode(body: bytes) -> Finding:
    """Raises DataError for what is no finding, or one that can't be true."""
    try:
        finding = Finding.from_proto(findings_pb2.Finding.FromString(_bounded(body)))
    except (DecodeError, ValueError, OverflowError, RecursionError) as error:
        raise DataError(f"{len(body)} bytes are no finding: {error}") from error
    _check(finding)
    return finding


def _bounded(body: bytes) -> bytes:
    if len(body) > MAX_FINDING_BYTES:
        raise DataError(f"a finding of {len(body)} bytes; {MAX_FINDING_BYTES} are the most")
    return body


def _check(finding: Finding) -> None:
    if not _ID.fullmatch(finding.id):
        raise DataError("a finding's id must be letters, digits, '.', '_' or '-', at most 128")
    check_identity(trace_pb2.Identity(run=finding.run, job=finding.job, attempt=_attempt(finding.attempt)))
    _within("ranks", finding.ranks, MAX_WORLD - 1)
    _within("workers", (number for worker in finding.workers for number in (worker.dp, worker.pp)), MAX_WORLD - 1)
    steps = (finding.since_step, finding.opened_step, finding.resolved_step)
    _within("steps", (step for step in steps if step is not None), MAX_STEP)
    times = (finding.opened_unix_ns, finding.resolved_unix_ns, finding.updated_unix_ns, finding.since_unix_ns)
    _within("times", (*times, finding.refuted_unix_ns), MAX_TIME_NS)
    _within("opened_attempt", (finding.opened_attempt,), finding.attempt)
    _short("node and gpu_uuid", (finding.node, finding.gpu_uuid), MAX_LABEL)
    _short("devices", finding.devices, MAX_LABEL + RANK_CHARACTERS)
    _short("summary and advice", (finding.summary, finding.advice), MAX_TEXT)
    if len(finding.devices) not in (0, len(finding.ranks)) or len(finding.devices) > MAX_DEVICES:
        raise DataError(f"{len(finding.devices)} devices of {len(finding.ranks)} ranks; at most {MAX_DEVICES}, or none")
    if len(finding.evidence) > MAX_EVIDENCE:
        raise DataError(f"{len(finding.evidence)} reasons; {MAX_EVIDENCE} are the most")
    for evidence in finding.evidence:
        _check_evidence(evidence)


def _check_evidence(evidence: Evidence) -> None:
    _short("signal and unit", (evidence.signal, evidence.unit), MAX_LABEL)
    _short("evidence", (evidence.text,), MAX_TEXT)
    _within("evidence.steps", evidence.steps, MAX_STEP)
    if len(evidence.values) != len(evidence.steps) or len(evidence.expected) not in (0, len(evidence.steps)):
        raise DataError("a reason's series must have one length")


def _attempt(number: int) -> int:
    """As the message can carry it; 0 is refused."""
    return number if 0 <= number < 1 << 32 else 0


def _within(name: str, values: Iterable[int], most: int) -> None:
    for value in values:
        if not 0 <= value <= most:
            raise DataError(f"{name}: {value} is not from 0 to {most}")


def _short(name: str, texts: Iterable[str], most: int) -> None:
    for text in texts:
        if len(text) > most:
            raise DataError(f"{name}: {len(text)} characters; {most} are the most")
