"""The format: a folder for each case, with `case.json`, which says what was wrong, beside a trace folder of ours
(docs/agent.md: `traces/<namespace>/<job>/attempt-<n>/rank-<r>.pb`)."""

from __future__ import annotations

import lzma
import shutil
import tempfile
from collections.abc import Iterator, Set
from contextlib import contextmanager
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from megatronapp.core.errors import DataError, UsageError
from megatronapp.core.findings import Cause, Kind
from megatronapp.core.scenario import FaultKind, HangSide
from megatronapp.detector.formats import tracefolder

LABEL = "case.json"
TRACES = "traces"
MAX_LABEL_BYTES = 1 << 20
PACKED = ".xz"
"""Files of a case that is kept may end so."""

HANGS = frozenset({FaultKind.HANG, FaultKind.KILL, FaultKind.SKIP_COLLECTIVE, FaultKind.WRONG_SIZE}) | {
    FaultKind.WRONG_ORDER
}
RIGHT: dict[FaultKind, tuple[Kind, frozenset[Cause]]] = {
    FaultKind.SLOW_COMPUTE: (Kind.SLOW_GPU, frozenset({Cause.COMPUTE, Cause.THERMAL, Cause.INTERFERENCE})),
    FaultKind.HOST_STALL: (Kind.SLOW_HOST, frozenset({Cause.HOST_CPU})),
    FaultKind.DATA_STALL: (Kind.SLOW_HOST, frozenset({Cause.DATA_LOADING})),
    FaultKind.LATE_LINK: (Kind.SLOW_LINK, frozenset({Cause.NIC, Cause.NVLINK})),
    FaultKind.HANG: (Kind.HANG, frozenset({Cause.HOST_CPU, Cause.COMPUTE})),
    FaultKind.KILL: (Kind.HANG, frozenset({Cause.HOST_CPU})),
    **dict.fromkeys(
        (FaultKind.SKIP_COLLECTIVE, FaultKind.WRONG_SIZE, FaultKind.WRONG_ORDER),
        (Kind.HANG, frozenset({Cause.DEADLOCK})),
    ),
}
"""Kind and causes of a right verdict."""


class Source(StrEnum):
    SIMULATED = "simulated"
    RECORDED = "recorded"
    PUBLISHED = "published"


class Injected(BaseModel):
    """What was broken on purpose."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    kind: FaultKind
    ranks: tuple[int, ...] = Field(min_length=1, max_length=1024)
    from_step: int = Field(ge=1)
    size: float | None = Field(default=None, gt=0, description="a ratio, or seconds of a stall; none of a hang")
    side: HangSide | None = None
    begun_unix_ns: int = Field(ge=0, description="when its first step began, on the recording's clock")

    @property
    def hangs(self) -> bool:
        return self.kind in HANGS

    def explains(self, kind: Kind, cause: Cause) -> bool:
        """Whether a verdict's kind and cause are right. `unknown` is never wrong where the ranks are right."""
        right, causes = RIGHT[self.kind]
        if self.side is not None:
            causes = frozenset({Cause.HOST_CPU if self.side is HangSide.HOST else Cause.COMPUTE})
        return kind is Kind.UNKNOWN or (kind is right and (cause in causes or cause is Cause.UNKNOWN))


class Label(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")

    format: Literal[1] = 1
    name: str = Field(min_length=1, max_length=200)
    source: Source
    layout: str = Field(max_length=200)
    world: int = Field(ge=1, le=16_384)
    faults: tuple[Injected, ...] = Field(default=(), max_length=16)

    @property
    def ranks(self) -> frozenset[int]:
        return frozenset(rank for fault in self.faults for rank in fault.ranks)

    def explains(self, kind: Kind, cause: Cause, ranks: Set[int]) -> bool:
        """Whether kind and cause of a verdict that names these ranks are right."""
        named = [fault for fault in self.faults if ranks & set(fault.ranks)]
        late_host = self.waits_for_late_messages and (kind, cause) == (Kind.SLOW_HOST, Cause.HOST_CPU)
        return any(fault.explains(kind, cause) or (late_host and fault.kind is FaultKind.LATE_LINK) for fault in named)

    @property
    def waits_for_late_messages(self) -> bool:
        """Where a schedule overlaps its messages, and gloo can't hold one back, a rank whose messages are made late
        stands still on its host before each (faults/waits.py)."""
        return self.source is Source.RECORDED and "VPP" in self.layout

    @property
    def group(self) -> str:
        """Under which it is counted."""
        if not self.faults:
            return "clean"
        if len(self.faults) > 1:
            return "two at once"
        (fault,) = self.faults
        return f"{fault.kind} {fault.side or ''}".strip() + (f" {fault.size:g}" if fault.size else "")


@dataclass(frozen=True)
class Case:
    label: Label
    attempt: tracefolder.Attempt


def write_label(folder: Path, label: Label) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / LABEL).write_text(label.model_dump_json(indent=1) + "\n")


def read(folder: Path) -> Case:
    """Raises DataError for what is no case."""
    file = folder / LABEL
    try:
        if file.stat().st_size > MAX_LABEL_BYTES:
            raise DataError(f"{file} is larger than {MAX_LABEL_BYTES} bytes; it is no label of a case")
        label = Label.model_validate_json(file.read_bytes())
    except OSError as error:
        raise DataError(f"{file} can't be read: {error.strerror}") from error
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(map(str, first["loc"])) or "the file"
        raise DataError(f"{file} is no label of a case: {where}: {first['msg']}") from error
    attempts = tracefolder.find_attempts(folder / TRACES)
    if len(attempts) != 1:
        raise DataError(f"{folder / TRACES} has {len(attempts)} attempts of a job; a case has one")
    return Case(label, attempts[0])


@contextmanager
def opened(folder: Path) -> Iterator[Case]:
    """A case whose files may be packed. Raises DataError for what is no case."""
    packed = sorted((folder / TRACES).rglob(f"rank-*.pb{PACKED}"))
    if not packed:
        yield read(folder)
        return
    with tempfile.TemporaryDirectory() as place:
        for file in (folder / LABEL, *packed):
            unpacked = Path(place) / file.relative_to(folder).with_suffix("" if file.suffix == PACKED else file.suffix)
            unpacked.parent.mkdir(parents=True, exist_ok=True)
            _copy(file, unpacked)
        yield read(Path(place))


def pack(folder: Path) -> None:
    """A case's files by xz, in place."""
    for file in sorted((folder / TRACES).rglob("rank-*.pb")):
        file.with_name(file.name + PACKED).write_bytes(lzma.compress(file.read_bytes()))
        file.unlink()


def _copy(file: Path, to: Path) -> None:
    try:
        with lzma.open(file) if file.suffix == PACKED else file.open("rb") as source, to.open("wb") as target:
            shutil.copyfileobj(source, target)
    except (OSError, EOFError, lzma.LZMAError) as error:
        raise DataError(f"{file} can't be read: {error}") from error


def find(root: Path) -> Iterator[Path]:
    """The folders of all cases below a folder, by name. Raises UsageError where there is none."""
    folders = sorted(file.parent for file in root.rglob(LABEL))
    if not folders:
        raise UsageError(f"{root} holds no cases ({LABEL}); make some with `python -m bench.corpus make {root}`")
    yield from folders
