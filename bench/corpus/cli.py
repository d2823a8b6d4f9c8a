"""`python -m bench.corpus {make,record,score,published} FOLDER`: make cases, record some on this host, judge them, or
those that others have published."""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from itertools import islice
from multiprocessing import get_context
from pathlib import Path

from bench.corpus import others, ours, published, score, simulated, standing
from bench.corpus.case import Label, find, opened
from bench.corpus.ours import Verdict
from bench.corpus.score import Score
from bench.scale.seeds import RESULT_ROUND, TUNING
from megatronapp.core.errors import DataError, UsageError

OURS = "this detector"
SEEDS = 2
"""Of each layout and fault: more than 200 cases."""
FLOOR = 0.99
"""F1 of all cases; of slow ranks of 5 % alone FLOOR_SMALL."""
FLOOR_SMALL = 0.95
SMALL = "slow_compute 1.05"

Planned = simulated.Planned | standing.Standing
Judged = tuple[Label, list[Verdict], dict[str, frozenset[int]]]


def planned(options: argparse.Namespace) -> Iterator[Planned]:
    chosen = (options.round if options.result else TUNING, options.first, options.seeds)
    yield from islice(simulated.planned(*chosen), 0, None, options.every)
    yield from islice(standing.planned(*chosen), 0, None, options.every)


def make(root: Path, options: argparse.Namespace) -> None:
    cases = list(planned(options))
    with _pool(options.jobs) as pool:
        list(pool.map(partial(_write, root=root), cases, chunksize=4))
    print(f"{root}: {len(cases)} cases")


def _write(case: Planned, root: Path) -> None:
    case.write(root)


def _judged(folder: Path) -> Judged:
    with opened(folder) as case:
        return case.label, ours.judge(case), {name: others.name(case, rule) for name, rule in others.RULES.items()}


def record(options: argparse.Namespace) -> int:
    from bench.corpus import processors, record

    if options.gpus:
        return record.on_gpus(options.folder, options.gpus, options.within)
    os.environ["CUDA_VISIBLE_DEVICES"] = ""  # ranks take the GPUs that they see
    if options.small:
        return record.small(options.folder)
    cases = list(processors.planned(options.first, options.seeds))[options.begin :: options.every]
    return record.on_processors(options.folder, cases, options.jobs, options.within)


def judge(root: Path, options: argparse.Namespace) -> int:
    """The exit code: 1 where it is below the floor."""
    groups: dict[str, Score] = {}
    theirs = {name: Score() for name in others.RULES}
    with _pool(options.jobs) as pool:
        for label, verdicts, named in pool.map(_judged, list(find(root)), chunksize=4):
            _count(groups, label, verdicts)
            for name, ranks in named.items():
                theirs[name].count(label, ranks)
    return _print(groups, theirs)


def judge_published(beside: Path) -> int:
    """The same of what others have recorded; their files tell no time to a verdict."""
    groups: dict[str, Score] = {}
    for label, verdicts in published.judged(beside):
        _count(groups, label, verdicts)
    for each in groups.values():
        each.seconds.clear()
    return _print(groups, {})


def _count(groups: dict[str, Score], label: Label, verdicts: list[Verdict]) -> None:
    of_group = groups.setdefault(f"{label.source}: {label.group}", Score())
    before = of_group.false + of_group.missed + of_group.wrong_causes
    of_group.count_pages(label, verdicts)
    if of_group.false + of_group.missed + of_group.wrong_causes > before:
        said = [(sorted(each.ranks), str(each.kind), str(each.cause)) for each in verdicts]
        print(f"  {label.name}: broken {sorted(label.ranks)}, paged {said}", file=sys.stderr)


def _print(groups: dict[str, Score], theirs: dict[str, Score]) -> int:
    whole = score.total(groups.values())
    print(score.HEAD)
    for name, each in [*sorted(groups.items()), (OURS, whole), *theirs.items()]:
        print(score.line(name, each))
    return 0 if _holds(whole, groups) else 1


def _holds(whole: Score, groups: dict[str, Score]) -> bool:
    """Whether nothing is below the floor; says what is."""
    small = score.total(each for name, each in groups.items() if name.endswith(SMALL))
    hangs = score.total(each for name, each in groups.items() if any(kind in name for kind in _HANGS))
    checks = {
        f"F1 of all cases is {whole.f1:.3f}, below {FLOOR}": whole.f1 < FLOOR,
        f"F1 of ranks that are slower by 5 % is {small.f1:.3f}, below {FLOOR_SMALL}": small.f1 < FLOOR_SMALL,
        f"F1 of hangs is {hangs.f1:.3f}, below 1": hangs.f1 < 1,
        f"{whole.clean_paged} clean cases page": whole.clean_paged > 0,
        f"{whole.wrong_causes} wrong causes of {whole.right}, more than 1 %": whole.wrong_causes > 0.01 * whole.right,
    }
    for text in (text for text, below in checks.items() if below):
        print(f"below the floor: {text}", file=sys.stderr)
    return not any(checks.values())


_HANGS = tuple(str(kind) for kind in dict.fromkeys(kind for kind, _ in standing.KINDS))


def _pool(jobs: int) -> ProcessPoolExecutor:
    return ProcessPoolExecutor(jobs, mp_context=get_context("spawn"))


def parser() -> argparse.ArgumentParser:
    known = argparse.ArgumentParser(prog="python -m bench.corpus", description=__doc__)
    known.add_argument(
        "what", nargs="?", choices=("make", "record", "score", "published", "all"), default="all",
        help="default: make and score",
    )  # fmt: skip
    known.add_argument("folder", type=Path, nargs="?", help="of the cases; of `all` and `published` it may be left out")
    known.add_argument("--seeds", type=int, default=SEEDS, help=f"of each layout and fault; default {SEEDS}")
    known.add_argument("--first", type=int, default=0, help="seeds of the round to leave out; default 0")
    known.add_argument("--every", type=_positive, default=1, help="make every so-many-th case alone; record likewise")
    known.add_argument(
        "--begin", type=int, default=0, metavar="CASE", help="number of the planned case to record first; default 0"
    )
    known.add_argument("--result", action="store_true", help="seeds for results; default: those for tuning")
    known.add_argument("--round", type=int, default=RESULT_ROUND, help=f"of --result's seeds; default {RESULT_ROUND}")
    known.add_argument("--small", action="store_true", help="record each kind of fault once or twice, on processors")
    known.add_argument("--gpus", type=int, choices=(2, 4), help="record on so many GPUs, not on processors")
    known.add_argument("--within", type=_positive, help="seconds in which to record what can be; default: all of it")
    known.add_argument(
        "--jobs", type=_positive, default=1, help="processes, each with a core; of record jobs, each with six"
    )
    return known


def _positive(text: str) -> int:
    if (number := int(text)) < 1:
        raise ValueError(text)
    return number


def main(argv: Sequence[str] | None = None) -> int:
    known = parser()
    options = known.parse_args(argv)
    try:
        if options.what == "published":
            return judge_published(options.folder or published.BESIDE)
        if options.folder is None:
            if options.what != "all":
                known.error(f"{options.what} needs the folder of the cases")
            with tempfile.TemporaryDirectory() as folder:
                make(Path(folder), options)
                return judge(Path(folder), options)
        if options.what in ("make", "all"):
            make(options.folder, options)
        if options.what == "record":
            return record(options)
        return judge(options.folder, options) if options.what in ("score", "all") else 0
    except (DataError, UsageError, ValueError) as error:
        known.error(str(error))
