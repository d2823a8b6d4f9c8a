"""Cases of real ranks: four that train on this host's processors, with the fault injector, traced into files.

    python -m bench.corpus record FOLDER            # all of them: a night of two cores that do nothing else
    python -m bench.corpus record FOLDER --every 20

A case that is there already is left alone, so that a run that was ended goes on where it was.
"""

from __future__ import annotations

import os
import shutil
import sys
import time
from collections.abc import Iterator, Sequence
from multiprocessing.context import ForkServerProcess
from pathlib import Path

import yaml

from bench.corpus.case import LABEL, TRACES, Injected, Label, Source, write_label
from megatronapp.core.errors import DataError
from megatronapp.core.scenario import Fault, FaultKind, Scenario
from megatronapp.core.trace import file
from tests.faults.cases import ALL_LAYOUTS, CLEAN, FAULTY, FROM_STEP, LAYOUTS, Case
from tests.faults.harness import MODEL, WORLD, forkserver
from tests.faults.rank import main as rank_main
from tests.support.ports import free_port

CLEAN_STEPS, FAULT_STEPS = 120, 60
STANDING_SECONDS = 40.0
"""A job in which nothing moves is recorded for so long."""
START_SECONDS = 300.0
KINDS = (FaultKind.SKIP_COLLECTIVE, FaultKind.WRONG_SIZE, FaultKind.WRONG_ORDER, FaultKind.KILL)
JOB = "local/corpus"


def cases() -> list[Case]:
    """The fault matrix, and in each layout who dies or calls something else."""
    found = [*FAULTY, *CLEAN]
    for number, layout in enumerate(LAYOUTS):
        for kind in KINDS:
            fault = Fault(kind=kind, ranks=((number + 1) % WORLD,), from_step=FROM_STEP, to_step=FROM_STEP)
            found.append(Case(f"{layout}: {kind}", layout, Scenario(faults=(fault,))))
    return found


def main(root: Path, every: int = 1) -> int:
    context = forkserver()
    for place, case in enumerate(cases()):
        folder = root / "recorded" / _folder_name(case.name)
        if place % every or (folder / LABEL).exists():
            continue
        shutil.rmtree(folder, ignore_errors=True)
        ranks = _start(case, context.Process, folder)
        try:
            _until_over(case, folder, ranks)
        finally:
            _kill(ranks)
        try:
            write_label(folder, _label(case, folder))
        except DataError as error:
            print(f"{case.name}: not recorded: {error}", file=sys.stderr)
        else:
            print(f"{case.name}: {folder}", flush=True)
    return 0


def _folder_name(name: str) -> str:
    return "".join(letter if letter.isalnum() or letter in ".+-" else "_" for letter in name)


def _start(case: Case, process: type[ForkServerProcess], folder: Path) -> list[ForkServerProcess]:
    folder.mkdir(parents=True)
    argv = [*MODEL, *ALL_LAYOUTS[case.layout], "--trace-dir", str(folder / TRACES)]
    if not case.clean:
        scenario = folder / "scenario.yaml"
        scenario.write_text(yaml.safe_dump(case.scenario.model_dump(mode="json", exclude_none=True)))
        argv += ["--fault-scenario", str(scenario)]
    environment = {
        "WORLD_SIZE": str(WORLD),
        "LOCAL_WORLD_SIZE": str(WORLD),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(free_port()),
        "OMP_NUM_THREADS": "1",
        "MEGATRONAPP_JOB": JOB,
        "MEGATRONAPP_RUN": f"corpus-{os.getpid()}-{time.time_ns()}",
    }
    ranks = []
    for rank in range(WORLD):
        own = environment | {"RANK": str(rank), "LOCAL_RANK": str(rank)}
        one = process(target=rank_main, args=(argv, own, str(folder / f"rank-{rank}.log")), daemon=True)
        one.start()
        ranks.append(one)
    return ranks


def _until_over(case: Case, folder: Path, ranks: Sequence[ForkServerProcess]) -> None:
    last = CLEAN_STEPS if case.clean else FROM_STEP + FAULT_STEPS
    step, moved = 0, time.monotonic()
    while step < last:
        time.sleep(1)
        newest, now = max((number for number, _ in _steps(folder, 0)), default=0), time.monotonic()
        if newest > step:
            step, moved = newest, now
        elif now - moved > (STANDING_SECONDS if step else START_SECONDS):
            return
        if all(rank.exitcode is not None for rank in ranks):
            return


def _kill(ranks: Sequence[ForkServerProcess]) -> None:
    for rank in ranks:
        rank.kill()
    for rank in ranks:
        rank.join()


def _label(case: Case, folder: Path) -> Label:
    """Raises DataError where the recording does not reach the fault."""
    faults = tuple(_injected(fault, folder) for fault in case.scenario.faults)
    return Label(name=case.name, source=Source.RECORDED, layout=case.layout, world=WORLD, faults=faults)


def _injected(fault: Fault, folder: Path) -> Injected:
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
