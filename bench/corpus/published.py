"""Real jobs of which those who recorded them wrote down what was wrong: flight recorders, scrapes, tables and traces as
`megatronapp analyze` reads them. They lie beside a checkout (../shared/data), but for two of our own."""

from __future__ import annotations

import lzma
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from bench.corpus.case import Injected, Label, Source
from bench.corpus.ours import Verdict
from megatronapp.core.scenario import FaultKind, HangSide
from megatronapp.detector.analyze import analyze

ROOT = Path(__file__).resolve().parents[2]
BESIDE = ROOT.parent / "shared" / "data"
OWN = ROOT / "tests" / "data" / "h200"
ANY_STEP = 1
"""Files of others don't tell in which step a fault began."""


@dataclass(frozen=True)
class Published:
    place: str
    """Below the folder."""
    layout: str
    world: int
    ranks: tuple[int, ...] = ()
    kind: FaultKind = FaultKind.HANG
    side: HangSide | None = None

    @property
    def label(self) -> Label:
        fault = Injected(kind=self.kind, ranks=self.ranks or (0,), from_step=ANY_STEP, side=self.side, begun_unix_ns=0)
        return Label(
            name=self.place,
            source=Source.PUBLISHED,
            layout=self.layout,
            world=self.world,
            faults=(fault,) if self.ranks else (),
        )


FLIGHT_RECORDER, SCRAPES = "nvrx_flight_recorder/fr_traces", "dlrover_xpu_timer"
TABLES, TRACES = "bytedance_straggler", "megatronapp_profiling"
OF_OTHERS = (
    Published(f"{FLIGHT_RECORDER}/gpu_error_1st", "MoE", 16, (12, 14), side=HangSide.DEVICE),
    Published(f"{FLIGHT_RECORDER}/lock_gil_2nd", "MoE", 16, (10, 15), side=HangSide.HOST),
    Published(f"{SCRAPES}/hang/xpu_timer_metric_some", "one node", 8, (0, 2, 5)),
    Published(f"{SCRAPES}/hang/xpu_timer_metric_all", "one node", 8, tuple(range(8))),
    Published(f"{SCRAPES}/normal/xpu_timer_metric_0", "one node", 8),
    Published(f"{SCRAPES}/xpu_timer_metric_single", "one node", 8),
    Published(f"{TABLES}/trace-SE.parquet", "PP2 x DP32 x SP2", 128),
    Published(f"{TABLES}/trace-ST.parquet", "PP4 x DP2", 8),
    Published(f"{TRACES}/data-1-pipeline-4-tensor-1-dpp-aggregated.json", "PP4", 4),
    Published(f"{TRACES}/data-1-pipeline-4-tensor-1-pp-aggregated.json", "PP4", 4),
    Published(f"{TRACES}/merged_trace.json", "PP4", 4),
)
OF_US = (
    Published("interference", "DP2", 2, (1,), FaultKind.SLOW_COMPUTE),
    Published("interference-pipeline", "PP2", 2, (1,), FaultKind.SLOW_COMPUTE),
)


def judged(beside: Path = BESIDE) -> Iterator[tuple[Label, list[Verdict]]]:
    """Each that is there."""
    for each in OF_OTHERS:
        if (beside / each.place).exists():
            yield each.label, pages(beside / each.place)
    for each in OF_US:
        with tempfile.TemporaryDirectory() as folder:
            unpack(OWN / each.place, Path(folder) / "attempt-1")
            yield each.label, pages(Path(folder))


def unpack(packed: Path, into: Path) -> None:
    into.mkdir()
    for file in packed.glob("rank-*.pb.xz"):
        (into / file.stem).write_bytes(lzma.decompress(file.read_bytes()))


def pages(path: Path) -> list[Verdict]:
    return [Verdict(frozenset(f.ranks), f.kind, f.cause, 0) for f in analyze(path).findings if f.page]
