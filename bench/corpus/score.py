"""Verdicts against truth. Counted are ranks: named and broken (right), named and not broken (false), broken and not
named (missed)."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from statistics import median

from bench.corpus.case import Label
from bench.corpus.ours import Verdict

NS = 1e-9


@dataclass
class Score:
    cases: int = 0
    right: int = 0
    false: int = 0
    missed: int = 0
    wrong_causes: int = 0
    clean_paged: int = 0
    seconds: list[float] = field(default_factory=list)
    """From a fault's first step to the first page that names one of its ranks."""

    @property
    def precision(self) -> float:
        """1 where nobody was named."""
        return self.right / (self.right + self.false) if self.right + self.false else 1.0

    @property
    def recall(self) -> float:
        return self.right / (self.right + self.missed) if self.right + self.missed else 1.0

    @property
    def f1(self) -> float:
        of_both = 2 * self.right + self.false + self.missed
        return 2 * self.right / of_both if of_both else 1.0

    def count(self, label: Label, named: frozenset[int]) -> None:
        self.cases += 1
        self.right += len(named & label.ranks)
        self.false += len(named - label.ranks)
        self.missed += len(label.ranks - named)
        self.clean_paged += bool(named) and not label.faults

    def count_pages(self, label: Label, verdicts: Sequence[Verdict]) -> None:
        self.count(label, frozenset[int]().union(*(each.ranks for each in verdicts)))
        self.clean_paged += bool(verdicts) and not any(each.ranks for each in verdicts) and not label.faults
        for fault in label.faults:
            naming = [each for each in verdicts if each.ranks & set(fault.ranks)]
            if not naming:
                continue
            first = min(naming, key=lambda each: each.unix_ns)
            self.seconds.append((first.unix_ns - fault.begun_unix_ns) * NS)
            self.wrong_causes += not label.explains(first.kind, first.cause, first.ranks)


def total(scores: Iterable[Score]) -> Score:
    whole = Score()
    for each in scores:
        for name in ("cases", "right", "false", "missed", "wrong_causes", "clean_paged"):
            setattr(whole, name, getattr(whole, name) + getattr(each, name))
        whole.seconds += each.seconds
    return whole


def line(name: str, score: Score) -> str:
    seconds = f"{median(score.seconds):8.1f} {max(score.seconds):8.1f}" if score.seconds else f"{'-':>8} {'-':>8}"
    return (
        f"{name:<30} {score.cases:>5} {score.precision:>9.3f} {score.recall:>7.3f} {score.f1:>6.3f} "
        f"{score.wrong_causes:>6} {score.clean_paged:>6} {seconds}"
    )


COLUMNS = (
    *(("cases", 5), ("precision", 9), ("recall", 7), ("F1", 6)),
    *(("wrong", 6), ("clean", 6), ("median", 8), ("longest", 8)),
)
UNITS = ("", "", "", "", "cause", "paged", "s", "s")
HEAD = "\n".join(
    f"{'':<30} " + " ".join(f"{word:>{width}}" for word, (_, width) in zip(words, COLUMNS, strict=True))
    for words in ([name for name, _ in COLUMNS], UNITS)
)
