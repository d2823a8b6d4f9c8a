"""`python -m bench.scale [SUITE …]`: what the detector makes of simulated jobs."""

from __future__ import annotations

import argparse
import json
import os
import signal
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, suppress
from pathlib import Path

os.environ.setdefault("OMP_NUM_THREADS", "1")  # each process has a core, and arrays are small

from bench.scale import pool, report, rounds, speed, suites, work
from bench.scale.scenarios import FAULTS, LARGE, LAYOUTS, MODELS
from bench.scale.seeds import RESULT_ROUND, TUNING, seeds
from bench.scale.suites import Options
from bench.scale.work import Unit
from megatronapp.core.errors import DataError

UNITS: Mapping[str, Callable[[Options], Iterable[Unit]]] = {
    "healthy": suites.healthy,
    "recall": suites.recall,
    "faults": suites.faults,
    "hangs": suites.hangs,
    "round": rounds.whole,
}
"""Suites whose jobs are played by several processes."""
SUITES = (*UNITS, "speed", "realtime")
DEFAULT_SUITES = ("healthy", "recall", "faults", "hangs", "speed")
ENDED_EARLY = 3
"""What the command returns where jobs were left."""
Write = Callable[[dict[str, object]], None]


def parser() -> argparse.ArgumentParser:
    known = argparse.ArgumentParser(prog="python -m bench.scale", description=__doc__)
    known.add_argument(
        "suites", nargs="*", metavar="SUITE", help=f"of {', '.join(SUITES)}; default: {', '.join(DEFAULT_SUITES)}"
    )
    known.add_argument("--result", action="store_true", help="seeds for results; default: those for tuning")
    known.add_argument("--round", type=int, default=RESULT_ROUND, help=f"of --result's seeds; default {RESULT_ROUND}")
    known.add_argument("--first", type=int, default=0, help="seeds of the round to leave out; default 0")
    known.add_argument("--processes", type=int, default=work.cores(), metavar="N", help="default: one for each core")
    known.add_argument("--minutes", type=float, help="then what is through is told; default: all jobs are played")
    known.add_argument("--ranks", type=int, nargs="+", default=[1024], help="8 to 16384 each; default 1024")
    known.add_argument("--step-seconds", type=float, nargs="+", default=[15, 30, 60])
    known.add_argument("--gpu-days", type=float, default=200, help="of each healthy model, at least; default 200")
    known.add_argument("--rank-steps", type=float, default=0, help="of each healthy model, at least")
    known.add_argument("--trials", type=int, default=10, help="of each fault; default 10")
    known.add_argument("--realtime-jobs", type=int, default=1, help="of each size, of 46 steps each; default 1")
    known.add_argument("--percent", type=float, nargs="+", default=[3, 5, 10], help="sizes of a slow GPU")
    known.add_argument("--only", nargs="+", default=[], help=f"of {', '.join([*MODELS, *FAULTS])}")
    known.add_argument("--model", default="quiet", choices=sorted(MODELS), help="of the faulty jobs; default quiet")
    known.add_argument("--layouts", default=LARGE, choices=sorted(LAYOUTS), help=f"default {LARGE}")
    known.add_argument("--recording", default="", help="a file of bench.scale.record; default: data/h200.npz")
    known.add_argument("--json", type=Path, help="also write each job, and each line, as JSON to this file")
    known.add_argument(
        "--played", type=Path, nargs="+", default=[], metavar="FILE", help="of --json: its jobs are told, not played"
    )
    return known


def options_of(arguments: argparse.Namespace) -> Options:
    """Raises ValueError."""
    unknown = set(arguments.only) - set(MODELS) - set(FAULTS) - {"recorded"}
    if unknown:
        raise ValueError(f"no model or fault {', '.join(sorted(unknown))}")
    if wrong := [name for name in arguments.suites if name not in SUITES]:
        raise ValueError(f"no suite {', '.join(wrong)}; there are {', '.join(SUITES)}")
    if min(arguments.step_seconds) < 0.1 or max(arguments.step_seconds) > 60:
        raise ValueError("steps take 0.1 to 60 s")
    if arguments.result and arguments.round == TUNING:
        raise ValueError("round 0 of the seeds is for tuning")
    seeds(1, arguments.round, arguments.first)  # raises ValueError
    return Options(
        round=arguments.round if arguments.result else TUNING,
        first=arguments.first,
        worlds=suites.worlds_of(arguments.ranks),
        step_seconds=tuple(arguments.step_seconds),
        sizes=tuple(1 + percent / 100 for percent in arguments.percent),
        gpu_days=arguments.gpu_days,
        rank_steps=arguments.rank_steps,
        trials=arguments.trials,
        realtime_jobs=max(1, arguments.realtime_jobs),
        only=tuple(arguments.only),
        model=arguments.model,
        recording=arguments.recording,
        layouts=arguments.layouts,
    )


def _seeds_text(options: Options) -> str:
    """As a result that is told from them names them."""
    (begin,) = seeds(1, options.round, options.first)
    which = "for tuning" if options.round == TUNING else f"of round {options.round}"
    return f"seeds {which}, from {begin} on"


@contextmanager
def _ended_by(*signals: int) -> Iterator[None]:
    """KeyboardInterrupt where these come, as for Ctrl-C."""
    before = {number: signal.signal(number, signal.default_int_handler) for number in signals}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _play(units: Sequence[Unit], done: pool.Pool, processes: int, minutes: float | None, write: Write) -> bool:
    """Tells of the jobs that were through in the end, and returns whether these were all."""
    began = time.monotonic()
    left = [unit for unit in units if unit not in done.units]
    all_of_them = len(done) + len(left)
    playing = work.play(left, processes, None if minutes is None else 60 * minutes)
    with suppress(KeyboardInterrupt), closing(playing), _ended_by(signal.SIGTERM):
        for unit, result in playing:
            write(done.add(unit, result))
            took = time.monotonic() - began
            print(f"  {len(done):,} of {all_of_them:,} jobs, {took:.0f} s", file=sys.stderr, flush=True)
    print(done.text())
    for kind in done.kinds():
        for line in kind.as_json():
            write(line)
    if done.jobs:
        print("\n" + report.shares(report.lines(done.jobs)))
    print(f"{len(done):,} of {all_of_them:,} jobs were played", flush=True)
    return len(done) == all_of_them


def _speed(write: Write) -> None:
    for world in speed.GOALS_MILLISECONDS:
        measured = speed.measure(world)
        print(speed.line(measured), flush=True)
        write({"suite": "speed"} | vars(measured))


def _realtime(options: Options, write: Write) -> None:
    from bench.scale import realtime

    for world in options.worlds:
        jobs: list[realtime.Measured] = []
        for seed in seeds(options.realtime_jobs, options.round, options.first):
            jobs.append(realtime.measure(world, min(options.step_seconds), seed))
            print(realtime.line(jobs[-1]), flush=True)
            write({"suite": "realtime"} | vars(jobs[-1]))
        print(realtime.pooled(jobs), flush=True)


def main(argv: Sequence[str] | None = None) -> int:
    known = parser()
    arguments = known.parse_args(argv)
    try:
        options = options_of(arguments)
        chosen = arguments.suites or DEFAULT_SUITES
        played = pool.of_files(arguments.played)
        print(_seeds_text(options), flush=True)
        file = arguments.json.open("w") if arguments.json else None

        def write(numbers: dict[str, object]) -> None:
            if file:
                print(json.dumps(numbers), file=file, flush=True)

        units = [unit for suite in chosen if suite in UNITS for unit in UNITS[suite](options)]
        if units and not _play(units, played, max(1, arguments.processes), arguments.minutes, write):
            return ENDED_EARLY
        if "speed" in chosen:
            _speed(write)
        if "realtime" in chosen:
            _realtime(options, write)
    except (ValueError, DataError) as error:
        known.error(str(error))
    return 0
