"""What viewers ask for alike is one stream: planned, stitched and encoded once, its bytes shared."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from megatronapp.core.errors import DataError
from megatronapp.core.scope.expression import Expression
from megatronapp.core.scope.frame import MAX_DIMS, Codec, Flag, Frame, Kind, Section, pack
from megatronapp.core.scope.operations import Compare, Hist, Pca, Pool, Reducer, Replicas, Stats, TopK, When
from megatronapp.core.scope.plan import Plan, plan
from megatronapp.core.scope.quantize import FORMATS, Values
from megatronapp.core.scope.results import Result
from megatronapp.core.scope.sites import Axis, default_quantizer
from megatronapp.core.scope.stitch import stitch
from megatronapp.core.scope.token_texts import pack_texts, unpack_texts
from megatronapp.gateway.scope.assembly import Picture
from megatronapp.gateway.scope.beside import Beside
from megatronapp.gateway.scope.slots import Slots

MAX_LATEST = 4096
MAX_LATEST_BYTES = 4 << 20
"""Frames that a viewer who joins later gets at once, of each stream."""
MAX_PLANS = 32
UNLIMITED = 1 << 62
_PRECISE = {"asinh": "asinh16", "sqrt": "sqrt16", "affine": "f32", "affine_row": "f32", "affine_column": "f32"}
"""What a rank sends where the gateway decodes and encodes again."""
CODECS = {"": Codec.RAW, "raw": Codec.RAW, "triangle": Codec.TRIANGLE, "zlib": Codec.ZLIB}


@dataclass(frozen=True, slots=True)
class StreamKey:
    expression: str
    quantizer: str
    codec: str
    request: str


@dataclass(frozen=True, slots=True)
class Watcher:
    """One subscription of one viewer."""

    viewer: str
    subscription: int


@dataclass(slots=True)
class Recipient:
    slots: Slots
    max_fps: float
    stall: Callable[[str], None]
    """Says why something does not come."""
    _warned: set[str] = field(default_factory=set)

    def warn(self, reason: str) -> None:
        """Each reason once."""
        if reason not in self._warned:
            self._warned.add(reason)
            self.stall(reason)


@dataclass(eq=False)
class Stream:
    """`planned` None: no rank that is connected has the site."""

    key: StreamKey
    expression: Expression
    site: str
    layers: tuple[int, ...]
    """Chosen of the model; empty: the site belongs to none."""
    planned: Plan | None
    recipients: dict[Watcher, Recipient] = field(default_factory=dict)
    latest: dict[Hashable, bytes] = field(default_factory=dict)
    latest_bytes: int = 0
    plans: dict[Hashable, Plan] = field(default_factory=dict)
    beside: Beside = field(init=False)

    def __post_init__(self) -> None:
        self.beside = Beside(self.site)

    @property
    def max_fps(self) -> float:
        """Of all who look; 0: each step."""
        wanted = [recipient.max_fps for recipient in self.recipients.values()]
        return 0.0 if not wanted or 0.0 in wanted else max(wanted)

    @property
    def passes_through(self) -> bool:
        """Whether a rank's frame is the viewers' frame."""
        made = self.planned
        if made is None or (made.when is not None and not made.condition_of_rank):
            return False
        return not (made.stitched or made.gateway or made.beside)

    def wire_quantizer(self) -> str:
        return self.key.quantizer if self.passes_through else _PRECISE.get(self.key.quantizer, self.key.quantizer)

    def plan_of(self, axes: Sequence[Axis], logits: Sequence[Axis], extents: tuple[int, ...]) -> Plan:
        """With the sizes of one forward. Raises DataError."""
        place = _cut(axes), _cut(logits), extents
        if place not in self.plans:
            if len(self.plans) >= MAX_PLANS:
                self.plans.clear()
            of = logits if self.planned is not None and self.planned.lens else axes
            expected = {axis.name: extent for axis, extent in zip(of, extents, strict=True)}
            self.plans[place] = plan(
                self.expression,
                self.site,
                axes,
                logits=logits,
                expected=expected,
                max_bytes=UNLIMITED,
                replicas=self.planned.replicas if self.planned else 1,
            )
        return self.plans[place]

    def encode(self, picture: Picture, made: Plan, max_bytes: int) -> bytes | None:
        """The viewers' frame without its address; None where its condition does not hold. Raises DataError."""
        first = next(iter(picture.frames.values()))
        if self.passes_through and self._fits(first, made):
            frame, missing = _of_rank(first), 0
        else:
            result, missing = stitch(made, picture.results())
            if made.when is not None and not holds(made.when, result):
                return None
            compared = self.beside.apply(made, picture, result)
            if compared is None:
                return None
            frame = compared.frame(self.key.quantizer)
        data = pack(_dressed(frame, picture, missing, made, CODECS[self.key.codec]))
        if len(data) > max_bytes:
            raise DataError(f"a frame of {len(data)} bytes; at most {max_bytes}")
        return data

    def _fits(self, frame: Frame, made: Plan) -> bool:
        how = FORMATS[self.key.quantizer]
        quantized = frame.kind is not Kind.TENSOR or (frame.dtype, frame.quantizer) == (how.dtype, how.quantizer)
        return quantized and frame.kind is made.kind and frame.dims == made.sizes

    def deliver(self, picture: Picture, data: bytes) -> int:
        """To all who look. Returns how many frames somebody will never get because of it."""
        key = slot_key(picture)
        self._remember(key, data)
        throttled = not picture.key.request
        return sum(
            recipient.slots.offer(watcher.subscription, key, data, throttled=throttled)
            for watcher, recipient in self.recipients.items()
        )

    def warn(self, reason: str) -> None:
        """All who look: why something does not come."""
        for recipient in self.recipients.values():
            recipient.warn(reason)

    def _remember(self, key: Hashable, data: bytes) -> None:
        self.latest_bytes += len(data) - len(self.latest.pop(key, b""))
        self.latest[key] = data
        while len(self.latest) > MAX_LATEST or (len(self.latest) > 1 and self.latest_bytes > MAX_LATEST_BYTES):
            self.latest_bytes -= len(self.latest.pop(next(iter(self.latest))))


def _cut(axes: Sequence[Axis]) -> Hashable:
    """How axes are cut, whichever part is whose."""
    return tuple((axis.name, axis.size, tuple((split.rule, split.parts) for split in axis.splits)) for axis in axes)


def slot_key(picture: Picture) -> Hashable:
    """What a newer frame replaces: in training the layer's, of whatever microbatch. A generation's steps stay apart."""
    key = picture.key
    return (key.layer, key.step, key.request) if key.request else key.layer


def holds(when: When, result: Result) -> bool:
    """Whether a frame is sent. What is no tensor always is."""
    if not isinstance(result, Values):
        return True
    known = result.array[~result.absent]
    finite = known[np.isfinite(known)]
    if when.statistic == "nonfinite":
        return len(finite) < len(known)
    if not len(finite):
        return False
    value: dict[str, Callable[[], Any]] = {
        "absmax": np.abs(finite).max,
        "max": finite.max,
        "min": finite.min,
        "mean": finite.mean,
        "std": finite.std,
    }
    found = float(value[when.statistic]())
    return found > when.bound if when.sign == ">" else found < when.bound


_CONTEXT = (Section.REQUEST, Section.ORIGIN, Section.EXTENT)
"""What a rank says of the forward that its values are of."""
_ENCODED = (Section.SCALES, Section.OUTLIERS, Section.FIRST_NONFINITE, Section.LOG_SUM_EXP)


def _of_rank(frame: Frame) -> Frame:
    """Without what only the gateway can know."""
    return replace(
        frame,
        flags=frame.flags & (Flag.NONFINITE | Flag.OUTLIERS | Flag.CLIPPED),
        sections={section: data for section, data in frame.sections.items() if section in _ENCODED},
    )


def _dressed(frame: Frame, picture: Picture, missing: int, made: Plan, codec: Codec) -> Frame:
    """With when and where it is of."""
    frames = list(picture.frames.values())
    flags = frame.flags
    flags |= Flag.PARTIAL if missing else Flag(0)
    flags |= Flag.DOWNSAMPLED if made.downsampled else Flag(0)
    carried = {section: data for section, data in frames[0].sections.items() if section in _CONTEXT}
    sections = {**frame.sections, **carried, **_texts(frames)}
    key = picture.key
    dressed = replace(
        frame,
        subscription=0,
        sequence=0,
        captured_unix_us=min(each.captured_unix_us for each in frames),
        step=key.step,
        microbatch=key.microbatch,
        layer=key.layer,
        flags=flags,
        missing_shards=min(missing, 0xFFFF),
        sections=sections,
    )
    square = len(frame.dims) >= 2 and frame.dims[-1] == frame.dims[-2] > 0
    if dressed.codec is not Codec.RAW or not frame.payload or (codec is Codec.TRIANGLE and not square):
        return dressed
    return dressed.with_codec(codec) if frame.kind is Kind.TENSOR else dressed


def _texts(frames: Sequence[Frame]) -> dict[Section, bytes]:
    """Of tokens' ids: those of all shards."""
    found: dict[int, str] = {}
    for frame in frames:
        found |= unpack_texts(frame.sections.get(Section.TOKEN_TEXTS, b""))
    return {Section.TOKEN_TEXTS: pack_texts(found)} if found else {}


def fitted(expression: Expression, axes: Sequence[str], shape: Sequence[int], width: int, height: int) -> Expression:
    """The expression pooled to a page's cells, by the farthest value: it is the outliers that one looks for."""
    last = expression.operations[-1] if expression.operations else None
    if isinstance(last, Stats | Hist | TopK | Pca | Compare | Replicas) or not 1 <= len(axes) <= MAX_DIMS:
        return expression
    pools = [
        Pool(axis, cells, Reducer.FARTHEST)
        for axis, size, cells in zip(reversed(axes), reversed(shape), (width, height), strict=False)
        if cells and (size == 0 or size > cells)
    ]
    return replace(expression, operations=(*expression.operations, *pools))


def chosen_quantizer(site: str, asked: str) -> str:
    """Raises DataError."""
    name = asked or default_quantizer(site)
    if name not in FORMATS:
        raise DataError(f"there is no quantiser {name[:40]}; one of {', '.join(FORMATS)}")
    return name
