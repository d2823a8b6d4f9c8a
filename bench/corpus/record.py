"""Cases of real ranks with the fault injector, traced into files: four that train on this host's processors, or two or
four on its GPUs.

    python -m bench.corpus record FOLDER            # one after the other: a night of cores that do nothing else
    python -m bench.corpus record FOLDER --jobs 10 --within 540   # side by side on 64 cores, some 200 of them
    python -m bench.corpus record FOLDER --small    # each kind once or twice, a long clean one: twenty minutes
    python -m bench.corpus record FOLDER --gpus 4   # some twenty seconds a case; two at once, of two GPUs each

A case that is there already is left alone, so that a run that was ended goes on where it was. Files are packed.
"""

from __future__ import annotations

import math
import os
import shutil
import sys
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from multiprocessing.context import ForkServerProcess
from pathlib import Path

import yaml

from bench.corpus import gpus, places, processors
from bench.corpus.case import HANGS, LABEL, TRACES, Injected, Label, Source, pack, write_label
from bench.corpus.outside import Deed, FromOutside
from megatronapp.core.errors import DataError, UsageError
from megatronapp.core.scenario import Fault, FaultKind, Scenario
from megatronapp.core.trace import file
from tests.faults.cases import ALL_LAYOUTS, CLEAN, FAULTY, FROM_STEP, LAYOUTS, Case
from tests.faults.harness import MODEL, WORLD, forkserver
from tests.faults.rank import main as rank_main
from tests.support.ports import free_port

CLEAN_STEPS, FAULT_STEPS = 120, 60
LONG_CLEAN_STEPS = 400
POLL_SECONDS = 0.5
CASE_SECONDS = 25.0
"""Of one on GPUs, or on a quiet host, at most: none begins that would not be over in time."""
KINDS = (FaultKind.SKIP_COLLECTIVE, FaultKind.WRONG_SIZE, FaultKind.WRONG_ORDER, FaultKind.KILL)
JOB = "local/corpus"


class NoStepError(DataError):
    """A job's ranks have ended before their first step."""


@dataclass(frozen=True)
class Kit:
    """Where cases are played."""

    world: int
    model: Sequence[str]
    layouts: Mapping[str, Sequence[str]]
    standing_seconds: float
    """A job in which nothing moves is recorded for so long."""
    start_seconds: float
    standing: Sequence[str] = ()
    """More flags of a job that comes to a stand: its steps must be so long that heartbeats have told of some before it
    does, as in a job's first steps the detector waits for two minutes."""
    clean_steps: int = CLEAN_STEPS
    devices: str = ""
    """The GPUs, as CUDA_VISIBLE_DEVICES has them; empty: all, or none."""
    processors: frozenset[int] = frozenset()
    """Empty: all that there are."""


CPUS = Kit(WORLD, MODEL, ALL_LAYOUTS, standing_seconds=20.0, start_seconds=120.0, standing=("--global-batch-size=64",))
SMALL_SET = replace(CPUS, standing_seconds=40.0, start_seconds=300.0, clean_steps=LONG_CLEAN_STEPS)
TWO_GPUS = Kit(2, gpus.WIDE.split(), gpus.PAIRS, standing_seconds=14.0, start_seconds=60.0)
FOUR_GPUS = Kit(4, gpus.WIDE.split(), gpus.FOURS, standing_seconds=14.0, start_seconds=60.0)


def cases() -> list[Case]:
    """The fault matrix, and in each layout who dies or calls something else."""
    found = [*FAULTY, *CLEAN]
    for number, layout in enumerate(LAYOUTS):
        for kind in KINDS:
            fault = Fault(kind=kind, ranks=((number + 1) % WORLD,), from_step=FROM_STEP, to_step=FROM_STEP)
            found.append(Case(f"{layout}: {kind}", layout, Scenario(faults=(fault,))))
    return found


SMALL = (
    "DP4 sharded optimizer: skip_collective",
    "DP4 sharded optimizer: wrong_order",
    "PP2 x DP2: hang on 1",
    "EP2 x DP4: hang on 3",
    "DP4: slow_compute x1.2 on 1",
    "PP2 x DP2: slow_compute x1.4 on 0",
    "TP2 x DP2: host_stall 0.15 s on 1",
    "DP4: data_stall 0.15 s on 0",
    "PP4 (DP1): late_link 0.06 s on 3",
    "PP2 x DP2: slow_compute x1.4 on 0 + slow_compute x1.4 on 3",
    "clean 3: PP2 x DP2",
)
"""Without what gloo ends all ranks of a job over: a dead process, a collective of another size, most that are skipped.
Where somebody calls something else the group has four members: of two nobody could tell which."""


def on_processors(root: Path, chosen: Sequence[Case], jobs: int = 1, within: int | None = None) -> int:
    """So many at a time, each on processors of its own, with eight times the microbatches: with a core for each rank a
    step took 33 ms, shorter than any real one, and varied by a fifth; what makes one late by 0.15 s hid all else."""
    until = time.monotonic() + (within or math.inf)
    longer = replace(CPUS, model=(*CPUS.model, *CPUS.standing), standing=())
    if jobs == 1:
        return record(root, chosen, longer, until)
    all_processors, lanes = os.sched_getaffinity(0), processors.lanes(jobs)
    print(f"{len(lanes)} jobs at a time, each on {len(lanes[0])} processors", flush=True)
    os.sched_setaffinity(0, all_processors.difference(*lanes))
    try:
        kits = [replace(longer, processors=lane) for lane in lanes]
        with ThreadPoolExecutor(len(kits)) as threads:
            left = [iter(chosen)] * len(kits)
            list(threads.map(record, [root] * len(kits), left, kits, [until] * len(kits)))
    finally:
        os.sched_setaffinity(0, all_processors)
    return 0


def small(root: Path) -> int:
    chosen = {case.name: case for case in cases()}
    return record(root, [chosen[name] for name in SMALL], SMALL_SET)


def on_gpus(root: Path, devices: int, within: int | None = None) -> int:
    """Four GPUs record what needs four of them, and beside each other what needs two."""
    os.environ.setdefault("PYTORCH_NVML_BASED_CUDA_CHECK", "1")  # counting devices must not start CUDA: ranks are forks
    until = time.monotonic() + (within or math.inf)
    visible = (os.environ.get("CUDA_VISIBLE_DEVICES") or "0,1,2,3").split(",")[:devices]
    pairs = [replace(TWO_GPUS, devices=",".join(visible[first : first + 2])) for first in range(0, devices, 2)]
    if devices == 4:
        record(root, gpus.OF_FOUR, FOUR_GPUS, until - gpus.SHARE_OF_TWO * (within or 0))
    with ThreadPoolExecutor() as lanes:
        parts = [gpus.OF_TWO[number :: len(pairs)] for number in range(len(pairs))]
        list(lanes.map(record, [root] * len(pairs), parts, pairs, [until] * len(pairs)))
    return 0


def record(root: Path, chosen: Iterable[Case], kit: Kit, until: float = math.inf) -> int:
    """until: on the monotonic clock. A case is there once it is whole. Raises UsageError where none is there and
    the first one's ranks can't train here."""
    context = forkserver()
    for case in chosen:
        folder = root / "recorded" / folder_name(case.name)
        if (folder / LABEL).exists():
            continue
        if time.monotonic() + CASE_SECONDS > until:
            print(f"{case.name}: no time left", file=sys.stderr, flush=True)
            break
        shutil.rmtree(folder, ignore_errors=True)
        began = time.monotonic()
        try:
            label = _played(case, kit, context.Process, folder, until)
        except DataError as error:
            if isinstance(error, NoStepError) and not any(root.rglob(LABEL)):
                raise UsageError(f"{case.name}: {error}") from error
            print(f"{case.name}: not recorded: {error}", file=sys.stderr, flush=True)
            shutil.rmtree(folder / TRACES, ignore_errors=True)
        else:
            _keep(folder, label)
            print(f"{case.name}: {folder} ({time.monotonic() - began:.0f} s)", flush=True)
    return 0


def _keep(folder: Path, label: Label) -> None:
    """As it may be put beside the tests. What says that it is a case comes last."""
    places.leave_out(folder / TRACES)
    pack(folder)
    for other in (*folder.glob("*.log"), *folder.glob("scenario.yaml")):
        other.unlink()
    write_label(folder, label)


def _played(case: Case, kit: Kit, process: type[ForkServerProcess], folder: Path, until: float) -> Label:
    """Raises DataError where the fault is not reached, the job ends by it and does not stand, or time is up;
    NoStepError where its ranks did not train."""
    ranks, neighbours = _start(case, kit, process, folder)
    try:
        injected = _until_over(case, kit, folder, ranks, until)
        ended = all(rank.exitcode is not None for rank in ranks)
    finally:
        _kill([*ranks, *neighbours])
    if ended and not _newest(folder):
        raise NoStepError(f"its ranks end before their first step: {_end_of_log(folder)}")
    if ended:
        raise DataError("all ranks ended by themselves: see their logs, or gloo got more bytes than it expected")
    if isinstance(case, FromOutside) and injected is None:
        raise DataError(f"step {FROM_STEP} was not reached")
    faults = (injected,) if injected is not None else tuple(_injected(fault, folder) for fault in case.scenario.faults)
    if any(fault.hangs for fault in faults) and _newest(folder) >= FROM_STEP + FAULT_STEPS:
        raise DataError("the job goes on as if nothing was wrong: what is called takes the place of what should be")
    return Label(name=case.name, source=Source.RECORDED, layout=case.layout, world=kit.world, faults=faults)


def _stands(case: Case) -> bool:
    stopped = isinstance(case, FromOutside) and case.deed is Deed.STOP
    return stopped or any(fault.kind in HANGS for fault in case.scenario.faults)


def folder_name(name: str) -> str:
    return "".join(letter if letter.isalnum() or letter in ".+-" else "_" for letter in name)


def _start(
    case: Case, kit: Kit, process: type[ForkServerProcess], folder: Path
) -> tuple[list[ForkServerProcess], list[ForkServerProcess]]:
    """The ranks, and what runs beside them."""
    folder.mkdir(parents=True)
    model = [*kit.model, *(kit.standing if _stands(case) else ())]
    argv = [*model, *kit.layouts[case.layout], "--trace-dir", str(folder / TRACES)]
    if case.scenario.faults:
        scenario = folder / "scenario.yaml"
        scenario.write_text(yaml.safe_dump(case.scenario.model_dump(mode="json", exclude_none=True)))
        argv += ["--fault-scenario", str(scenario)]
    environment = {
        "WORLD_SIZE": str(kit.world),
        "LOCAL_WORLD_SIZE": str(kit.world),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(free_port()),
        "OMP_NUM_THREADS": "1",
        "MEGATRONAPP_JOB": JOB,
        "MEGATRONAPP_RUN": f"corpus-{os.getpid()}-{time.time_ns()}",
    }
    if kit.devices:
        environment["CUDA_VISIBLE_DEVICES"] = kit.devices
    ranks = []
    for rank in range(kit.world):
        own = environment | {"RANK": str(rank), "LOCAL_RANK": str(rank)}
        arguments = (argv, own, str(folder / f"rank-{rank}.log"), kit.processors)
        ranks.append(process(target=rank_main, args=arguments, daemon=True))
    neighbours = case.neighbours(process, environment, folder) if isinstance(case, FromOutside) else []
    for each in (*ranks, *neighbours):
        each.start()
    return ranks, neighbours


def _until_over(
    case: Case, kit: Kit, folder: Path, ranks: Sequence[ForkServerProcess], until: float
) -> Injected | None:
    """What was done from outside. Raises DataError."""
    last, injected = kit.clean_steps if case.clean else FROM_STEP + FAULT_STEPS, None
    step, moved = 0, time.monotonic()
    while step < last:
        time.sleep(POLL_SECONDS)
        newest, now = _newest(folder), time.monotonic()
        if now > until:
            raise DataError("its time is up")
        if isinstance(case, FromOutside) and injected is None and newest >= FROM_STEP:
            injected, last = case.do(ranks, folder, newest + 1), newest + FAULT_STEPS
        if newest > step:
            step, moved = newest, now
        elif now - moved > (kit.standing_seconds if step else kit.start_seconds):
            break
        if all(rank.exitcode is not None for rank in ranks):
            break
    return injected


def _kill(ranks: Sequence[ForkServerProcess]) -> None:
    for rank in ranks:
        rank.kill()
    for rank in ranks:
        rank.join()


def _injected(fault: Fault, folder: Path) -> Injected:
    """Raises DataError."""
    ends = [end for number, end in _steps(folder, fault.ranks[0]) if number == fault.from_step - 1]
    if not ends:
        raise DataError(f"step {fault.from_step - 1} of rank {fault.ranks[0]} was not reached")
    size = fault.effect_ratio if fault.effect_ratio is not None else fault.seconds
    return Injected(
        kind=fault.kind,
        ranks=fault.ranks,
        from_step=fault.from_step,
        size=size,
        side=fault.side,
        begun_unix_ns=ends[0],
    )


def _newest(folder: Path) -> int:
    """The last step that the first rank has told of; 0: none."""
    return max((number for number, _ in _steps(folder, 0)), default=0)


def _end_of_log(folder: Path) -> str:
    """The end of what the first rank has printed."""
    lines = (folder / "rank-0.log").read_text(errors="replace").split("\n")
    return next((line.strip() for line in reversed(lines) if line.strip()), "rank 0 printed nothing")


def _steps(folder: Path, rank: int) -> Iterator[tuple[int, int]]:
    """Number and end, in Unix time, of the steps that a rank has told of."""
    path = file.path_for(folder / TRACES, JOB, 1, rank)
    unix_ns = 0
    for message in file.read(path) if path.exists() else ():
        if message.HasField("hello"):
            unix_ns = message.hello.placement.host_unix_ns - message.hello.placement.host_clock_ns
        elif message.HasField("summary"):
            summary = message.summary
            yield summary.step, unix_ns + summary.start_ns + summary.duration_ns
