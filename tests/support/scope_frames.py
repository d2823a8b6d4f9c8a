"""Frames that Python and the page read alike: `python -m tests.support.scope_frames` writes tests/data/scope."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from megatronapp.core.scope.frame import Codec, Dtype, Flag, Frame, Kind, Section, cells, pack, unpack
from megatronapp.core.scope.quantize import FORMATS, Values, decode, encode

FOLDER = Path(__file__).resolve().parents[1] / "data" / "scope"


def frames() -> Iterator[tuple[str, bytes]]:
    """Name → packed frame. The same bytes at each call."""
    values = _values()
    for name in FORMATS:
        yield name, pack(_addressed(encode(values, name)), checksum=name == "asinh")
    probabilities = encode(Values(np.tril(np.full((2, 4, 4), 0.25, np.float32))), "sqrt")
    yield "triangle", pack(_addressed(probabilities.with_codec(Codec.TRIANGLE)))
    yield "zlib", pack(_addressed(encode(Values(np.zeros((8, 32), np.float32)), "asinh").with_codec(Codec.ZLIB)))
    yield (
        "partial",
        pack(
            _addressed(
                replace(
                    encode(values, "asinh"),
                    flags=Flag.PARTIAL | Flag.DOWNSAMPLED,
                    missing_shards=1,
                    sections={Section.REQUEST: b"request 1", Section.ORIGIN: np.array([0, 17, 0], "<u4").tobytes()},
                )
            )
        ),
    )
    counts = np.arange(6, dtype="<u4")
    yield "hist", pack(_addressed(Frame(kind=Kind.HIST, dtype=Dtype.U32, dims=(6,), payload=counts.tobytes())))
    yield "topk", pack(_addressed(_topk()))
    yield "scalar", pack(Frame(dims=(), payload=np.array(1.5, "<f4").tobytes()))


def expectations() -> dict[str, Any]:
    return {name: _expected(unpack(data)) for name, data in frames()}


def _values() -> Values:
    array = np.outer(np.array([1, -0.5, 0.01], np.float32), np.array([0, 0.1, 1, 2, 60, -7, 3e-5, 4], np.float32))
    array[1, 4], array[1, 5], array[1, 6], array[1, 7] = np.nan, np.inf, -np.inf, 1234.5
    masked, missing = np.zeros((2, *array.shape), bool)
    masked[2, 0] = missing[2, 1] = True
    return Values(array, masked, missing)


def _addressed(frame: Frame) -> Frame:
    return replace(
        frame, subscription=7, sequence=(1 << 40) + 3, captured_unix_us=1_700_000_000_123_456, step=12, layer=3
    )


def _topk() -> Frame:
    ids, values = np.array([[5, 9], [2, 0]], "<u4"), np.array([[2.0, 1.0], [-1.0, -3.0]], "<f4")
    sums = np.array([2.5, -0.5], "<f4").tobytes()
    payload = ids.tobytes() + values.tobytes()
    return Frame(kind=Kind.TOPK, dtype=Dtype.U32, dims=(2, 2), sections={Section.LOG_SUM_EXP: sums}, payload=payload)


def _expected(frame: Frame) -> dict[str, Any]:
    expected: dict[str, Any] = {
        "kind": frame.kind.name,
        "subscription": frame.subscription,
        "sequence": frame.sequence,
        "captured_unix_us": frame.captured_unix_us,
        "step": frame.step,
        "microbatch": frame.microbatch,
        "layer": frame.layer,
        "dtype": frame.dtype.name,
        "quantizer": frame.quantizer.name,
        "codec": frame.codec.name,
        "flags": int(frame.flags),
        "missing_shards": frame.missing_shards,
        "dims": list(frame.dims),
        "low": _cell(frame.low),
        "high": _cell(frame.high),
        "sections": {section.name: data.hex() for section, data in frame.sections.items()},
    }
    if frame.kind is Kind.TENSOR:
        values = decode(frame)
        states = zip(values.array.flat, _flags(values, values.masked), _flags(values, values.missing), strict=True)
        expected["values"] = [
            "masked" if masked else "missing" if missing else _cell(float(value)) for value, masked, missing in states
        ]
    else:
        expected["payload"] = [int(value) for value in cells(frame).flat]
    return expected


def _flags(values: Values, given: Any) -> Any:
    return np.zeros(values.array.shape, bool).flat if given is None else given.flat


def _cell(value: float) -> float | str:
    if math.isnan(value):
        return "nan"
    return value if math.isfinite(value) else "inf" if value > 0 else "-inf"


def expectations_text() -> str:
    return json.dumps(expectations(), indent=1, sort_keys=True) + "\n"


def write(folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for name, data in frames():
        (folder / f"{name}.mscope-frame").write_bytes(data)
    (folder / "frames.json").write_text(expectations_text())


if __name__ == "__main__":
    write(FOLDER)
