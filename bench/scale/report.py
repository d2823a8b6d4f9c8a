"""Report: outcomes of many jobs as lines, each number with its 95 % interval."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from bench.scale import intervals
from bench.scale.intervals import Interval
from bench.scale.scenarios import LARGE, Trial
from bench.scale.scoring import Outcome

PER_GPU_DAYS = 10_000.0
JOB_YEAR_DAYS = 365.0


@dataclass
class Line(Outcome):
    """Jobs of one kind together."""

    name: str = ""
    trials: int = 0

    def add(self, outcome: Outcome) -> None:
        self.trials += 1
        for name in _SUMMED:
            setattr(self, name, getattr(self, name) + getattr(outcome, name))
        self.detections += outcome.detections
        self.strays += outcome.strays

    def rate(self, events: int) -> tuple[float, Interval]:
        """Events per 10,000 GPU-days."""
        per = PER_GPU_DAYS / self.gpu_days if self.gpu_days else math.nan
        low, high = intervals.poisson(events)
        return events * per, (low * per, high * per)

    def a_year(self, events: int) -> tuple[float, Interval]:
        """Events in a year of one job: who has a small job has few GPU-days, and is woken as often as anybody."""
        per = JOB_YEAR_DAYS / self.job_days if self.job_days else math.nan
        low, high = intervals.poisson(events)
        return events * per, (low * per, high * per)

    @property
    def found(self) -> int:
        return sum(detection.found for detection in self.detections)

    @property
    def right_causes(self) -> int:
        """Of those found."""
        return sum(detection.right_cause for detection in self.detections)

    def to_the_page(self, what: str) -> tuple[float, Interval]:
        """Median `steps` or `seconds` of the faults that were found."""
        values = [float(getattr(detection, what)) for detection in self.detections if detection.found]
        return (float(np.median(values)), intervals.median(values)) if values else (math.nan, (math.nan, math.nan))

    def as_json(self) -> dict[str, object]:
        false, openings = self.rate(self.false_pages), self.rate(self.false_openings)
        faults, right = len(self.detections), self.pages - self.wrong_culprits - self.false_pages
        numbers: dict[str, object] = {name: getattr(self, name) for name in ("name", "trials", *_SUMMED)}
        numbers |= {"false_pages_per_10000_gpu_days": false, "false_openings_per_10000_gpu_days": openings}
        numbers |= {"false_pages_per_job_year": self.a_year(self.false_pages)}
        if faults:
            numbers |= {
                "faults": faults,
                "found": self.found,
                "recall": (self.found / faults, intervals.share(self.found, faults)),
                "right_cause": (self.right_causes / max(1, self.found), intervals.share(self.right_causes, self.found)),
                "wrong_causes_of_right_pages": (
                    self.wrong_causes / max(1, right),
                    intervals.share(self.wrong_causes, right),
                ),
                "wrong_culprits_of_pages": (
                    self.wrong_culprits / max(1, self.pages),
                    intervals.share(self.wrong_culprits, self.pages),
                ),
                "steps_to_page": self.to_the_page("steps"),
                "seconds_to_page": self.to_the_page("seconds"),
            }
        return numbers | {"strays": self.strays[:8]}


_SUMMED = (
    "gpu_days", "job_days", "rank_steps", "pages", "false_pages", "wrong_culprits", "wrong_causes", "false_openings",
    "advice", "errors", "generation_seconds", "engine_seconds",
)  # fmt: skip


def name_of(trial: Trial) -> str:
    """Jobs of one name are told together."""
    if trial.suite == "healthy":
        return trial.model + _unless_usual("", trial.layouts)
    fault = f"{trial.scenario} +{(trial.size - 1) * 100:.0f} %, {trial.world} ranks"
    return fault + _unless_usual(trial.model, trial.layouts)


def _unless_usual(model: str, layouts: str) -> str:
    return "".join(f", {name}" for name in (model, layouts) if name not in {"", "quiet", LARGE})


def lines(outcomes: Iterable[tuple[Trial, Outcome]]) -> list[Line]:
    found: dict[str, Line] = {}
    for trial, outcome in outcomes:
        found.setdefault(name_of(trial), Line(name=name_of(trial))).add(outcome)
    return list(found.values())


def pooled(parts: Sequence[Line], name: str = "all") -> Line:
    whole = Line(name=name)
    for part in parts:
        whole.trials += part.trials
        for key in (*_SUMMED, "detections", "strays"):
            setattr(whole, key, getattr(whole, key) + getattr(part, key))
    return whole


def healthy_table(parts: Sequence[Line]) -> str:
    head = f"{'model':18} {'GPU-days':>9} {'rank-steps':>10} {'false pages':>11} {'per 10,000 GPU-days':>26}"
    head += f" {'a job-year':>26}"
    head += f" {'false openings':>14} {'per 10,000 GPU-days':>26} {'advice':>6} {'errors':>6}"
    return "\n".join([head, *(_healthy_line(line) for line in [*parts, pooled(parts)])])


def _healthy_line(line: Line) -> str:
    pages, openings = (_with_interval(*line.rate(n), ",.1f") for n in (line.false_pages, line.false_openings))
    year = _with_interval(*line.a_year(line.false_pages), ",.1f")
    return (
        f"{line.name:18} {line.gpu_days:9,.0f} {line.rank_steps:10.2e} {line.false_pages:11} {pages:>26} {year:>26}"
        f" {line.false_openings:14} {openings:>26} {line.advice:6} {line.errors:6}"
    )


def faults_table(parts: Sequence[Line]) -> str:
    head = f"{'fault':38} {'found':>9} {'recall':>20} {'steps to the page':>19} {'seconds':>21}"
    head += f" {'wrong culprits, of pages':>26} {'wrong causes, of right':>24}"
    head += f" {'false pages':>11} {'false openings':>14} {'errors':>6}"
    return "\n".join([head, *map(_fault_line, parts)])


def _fault_line(line: Line) -> str:
    faults = len(line.detections)
    recall = _with_interval(line.found / faults, intervals.share(line.found, faults), ".2f")
    steps = _with_interval(*line.to_the_page("steps"), ".0f")
    seconds = _with_interval(*line.to_the_page("seconds"), ".0f")
    culprits = intervals.share_text(line.wrong_culprits, line.pages)
    causes = intervals.share_text(line.wrong_causes, line.pages - line.wrong_culprits - line.false_pages)
    found = f"{line.found} of {faults}"
    return (
        f"{line.name:38} {found:>9} {recall:>20} {steps:>19} {seconds:>21} {culprits:>26} {causes:>24}"
        f" {line.false_pages:11} {line.false_openings:14} {line.errors:6}"
    )


def _with_interval(value: float, interval: Interval, form: str) -> str:
    if math.isnan(value):
        return "–"
    low, high = interval
    return f"{value:{form}} ({low:{form}} … {high:{form}})"


def shares(parts: Sequence[Line]) -> str:
    whole = pooled(parts)
    seconds = whole.generation_seconds + whole.engine_seconds
    steps = max(1, whole.rank_steps)
    return (
        f"{seconds:,.0f} processor seconds: engine {whole.engine_seconds / max(seconds, 1e-9):.0%}, simulation "
        f"{whole.generation_seconds / max(seconds, 1e-9):.0%}; {1e9 * whole.engine_seconds / steps:,.0f} ns of the "
        "engine a rank-step"
    )
