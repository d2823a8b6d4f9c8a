"""The straggler-analysis format: `trace-<name>.parquet`, one row per operation, and `meta-<name>.yaml` beside it."""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from pydantic import BaseModel, ConfigDict, PositiveInt, ValidationError, model_validator

from megatronapp.core.errors import ConfigError, DataError, NotFoundError
from megatronapp.core.trace.limits import MAX_MICROBATCHES, MAX_STEP_PASSES, MAX_VIRTUAL_PIPELINE, MAX_WORLD
from megatronapp.core.yaml_text import load_yaml
from megatronapp.detector.formats.understood import one_line, understood
from megatronapp.detector.steps import Floats, Ints
from megatronapp.detector.whatif.recording import COMMUNICATION, COMPUTE, Key, Operation, Recording

MAX_ROWS = 200_000_000
MAX_SEQUENCE = 1 << 32
"""Operations of a type in a step."""
MAX_SPARSE = 1_000
"""The table is laid out by operation, step and replica; so many places a row at most."""
COLUMNS = ("dp_rank", "stage", "rank", "step", "optype", "start_ts", "duration", "seq_id", "mc", "mb_id", "gmc")


class Meta(BaseModel):
    """The job's parallel sizes. `dsp_size` counts the sequence-parallel ranks of a data-parallel replica."""

    model_config = ConfigDict(frozen=True, extra="ignore")

    trial_name: str
    run_id: int = 0
    dp_size: PositiveInt
    pp_size: PositiveInt
    tp_size: PositiveInt = 1
    dsp_size: PositiveInt = 1
    vpp_size: PositiveInt = 1
    world_size: PositiveInt

    @property
    def ranks_per_worker(self) -> int:
        return self.tp_size * self.dsp_size

    @model_validator(mode="after")
    def _sizes_fit(self) -> Meta:
        if self.world_size > MAX_WORLD:
            raise ValueError(f"world_size is more than {MAX_WORLD}")
        if self.world_size != self.dp_size * self.pp_size * self.ranks_per_worker:
            raise ValueError("world_size is not dp_size × pp_size × tp_size × dsp_size")
        return self


@dataclass(frozen=True, slots=True)
class Trace:
    """A recorded job and who its workers are."""

    meta: Meta
    recording: Recording
    rank: Ints
    """(stages, replicas): lowest global rank of each worker, −1 where it recorded nothing."""


def is_bytedance(path: Path) -> bool:
    return path.suffix == ".parquet"


def meta_path(path: Path) -> Path:
    """`meta-SE.yaml` for `trace-SE.parquet`."""
    name = path.stem.removeprefix("trace-")
    return path.with_name(f"meta-{name}.yaml")


def read(path: Path) -> Trace:
    """Raises NotFoundError when a file is missing and DataError when one can't be understood."""
    meta = read_meta(meta_path(path))
    rows = _read_rows(path)
    if len(rows["step"]) == 0:
        raise DataError(f"{path}: no operation is recorded in it")
    _check(path, meta, rows)
    with understood(path):
        return Trace(meta, _recording(rows), _worker_ranks(meta, rows))


def read_meta(path: Path) -> Meta:
    """The parallel sizes. Raises NotFoundError or DataError."""
    if not path.is_file():
        raise NotFoundError(f"{path}: not found; the job's parallel sizes have to lie beside its trace")
    try:
        return Meta.model_validate(load_yaml(path.read_bytes(), str(path)))
    except (ConfigError, OSError) as error:
        raise DataError(str(error)) from error
    except ValidationError as error:
        reasons = "; ".join(f"{'.'.join(map(str, e['loc'])) or 'file'}: {e['msg']}" for e in error.errors())
        raise DataError(f"{path}: {reasons}") from error


def _read_rows(path: Path) -> dict[str, npt.NDArray[Any]]:
    import pyarrow as pa
    import pyarrow.parquet as pq

    if not path.is_file():
        raise NotFoundError(f"{path}: not found")
    try:
        metadata = pq.read_metadata(path)
        if metadata.num_rows > MAX_ROWS:
            raise DataError(f"{path}: {metadata.num_rows} rows; {MAX_ROWS} are the most")
        names = metadata.schema.to_arrow_schema().names
        missing = [name for name in COLUMNS if name not in names]
        if missing:
            raise DataError(f"{path}: column {', '.join(missing)} is missing; it is not a straggler-analysis trace")
        table = pq.read_table(path, columns=list(COLUMNS)).combine_chunks()
        empty = [name for name in COLUMNS if table[name].null_count]
        if empty:
            raise DataError(f"{path}: column {', '.join(empty)} has rows without a value")
        rows = {name: table[name].to_numpy(zero_copy_only=False) for name in COLUMNS if name != "optype"}
        rows["optype"] = np.array(table["optype"].cast(pa.string()).to_pylist(), dtype=np.str_)
    except (pa.ArrowException, OSError, UnicodeDecodeError) as error:
        raise DataError(f"{path}: not readable as Parquet: {one_line(error)}") from error
    try:
        return {
            name: column if name == "optype" else column.astype(np.float64 if name in ("start_ts", "duration") else int)
            for name, column in rows.items()
        }
    except (ValueError, TypeError) as error:
        raise DataError(f"{path}: a column holds something else than numbers: {error}") from error


def _check(path: Path, meta: Meta, rows: dict[str, npt.NDArray[Any]]) -> None:
    unknown = set(np.unique(rows["optype"]).tolist()) - {*COMPUTE, *COMMUNICATION}
    if unknown:
        raise DataError(f"{path}: unknown operation type {', '.join(sorted(unknown))}")
    for column, size in (("dp_rank", meta.dp_size), ("stage", meta.pp_size), ("rank", meta.world_size)):
        if rows[column].min() < 0 or rows[column].max() >= size:
            raise DataError(f"{path}: {column} {rows[column].max()} where its metadata allows 0 to {size - 1}")
    for column, most in (("mc", MAX_VIRTUAL_PIPELINE), ("mb_id", MAX_MICROBATCHES), ("gmc", MAX_STEP_PASSES)):
        if rows[column].min() < -1 or rows[column].max() >= most:
            raise DataError(f"{path}: column {column} holds values that are not from -1 to {most - 1}")
    for column in ("start_ts", "duration"):
        if not np.isfinite(rows[column]).all():
            raise DataError(f"{path}: column {column} holds values that are no time")
    if rows["seq_id"].max() > MAX_SEQUENCE:
        raise DataError(f"{path}: seq_id {rows['seq_id'].max()} is more than {MAX_SEQUENCE}")
    if (rows["duration"] < 0).any() or (rows["seq_id"] < 0).any():
        raise DataError(f"{path}: a duration or seq_id is negative")


def _recording(rows: dict[str, npt.NDArray[Any]]) -> Recording:
    """Put the rows on axes (operation, step, replica). A row that comes twice is kept once."""
    steps, step = np.unique(rows["step"], return_inverse=True)
    replicas, replica = np.unique(rows["dp_rank"], return_inverse=True)
    types, kind = np.unique(rows["optype"], return_inverse=True)
    sequences = int(rows["seq_id"].max()) + 1
    code = (rows["stage"] * len(types) + kind) * sequences + rows["seq_id"]
    codes, operation = np.unique(code, return_inverse=True)
    shape = (len(codes), len(steps), len(replicas))
    if math.prod(shape) > MAX_SPARSE * len(code):
        raise DataError(
            f"{len(codes)} operations, {len(steps)} steps and {len(replicas)} replicas in {len(code)} rows: "
            "nearly all of it is missing"
        )
    row = np.full(shape, -1)
    row[operation[::-1], step[::-1], replica[::-1]] = np.arange(len(code))[::-1]
    known = row >= 0
    start = np.where(known, rows["start_ts"][row], np.nan)
    duration = np.where(known, rows["duration"][row], np.nan)
    template = row.reshape(len(codes), -1)[:, known.sum(axis=0).argmax()]
    keys = [
        Key(int(c // sequences // len(types)), str(types[c // sequences % len(types)]), int(c % sequences))
        for c in codes
    ]
    operations = tuple(
        _operation(key, rows, int(template[index]), row[index], start[index]) for index, key in enumerate(keys)
    )
    return Recording(operations, steps, replicas, start, duration)


def _operation(key: Key, rows: dict[str, npt.NDArray[Any]], template: int, every: Ints, start: Floats) -> Operation:
    """As the most complete group ran it, or typically where that one lacks it."""
    row = template if template >= 0 else int(every[every >= 0][0])
    begin = float(rows["start_ts"][row] if template >= 0 else np.nanmedian(start))
    return Operation(
        key,
        start=begin,
        end=begin + float(rows["duration"][row]),
        chunk=int(rows["mc"][row]),
        microbatch=int(rows["mb_id"][row]),
        part=int(rows["gmc"][row]),
    )


def _worker_ranks(meta: Meta, rows: dict[str, npt.NDArray[Any]]) -> Ints:
    rank = np.full((meta.pp_size, meta.dp_size), -1)
    rank[rows["stage"], rows["dp_rank"]] = rows["rank"]
    return rank
