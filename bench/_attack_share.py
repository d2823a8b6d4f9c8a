"""Which inputs a process executes of those that `--executions` and `--seed` name."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import dataclass

from tests.attack.targets import TARGETS


@dataclass(frozen=True)
class Share:
    """The `number`-th of so many parts."""

    number: int
    of: int

    @classmethod
    def parse(cls, text: str) -> Share:
        number, _, of = text.partition("/")
        try:
            share = cls(int(number), int(of))
        except ValueError:
            raise argparse.ArgumentTypeError(f"{text!r} is no share; write 3/32 for the third of 32 parts") from None
        if not 1 <= share.number <= share.of:
            raise argparse.ArgumentTypeError(
                f"{text!r} is no share; the parts are 1/{share.of} to {share.of}/{share.of}"
            )
        return share

    def part(self, seeds: range) -> range:
        return seeds[len(seeds) * (self.number - 1) // self.of : len(seeds) * self.number // self.of]

    def planned(self, names: Sequence[str], executions: int, seed: int) -> dict[str, range]:
        """Each target's part of the inputs."""
        whole = sum(TARGETS[name][1] for name in names)
        first = seed * 10**9
        return {name: self.part(range(first, first + round(executions * TARGETS[name][1] / whole))) for name in names}

    def __str__(self) -> str:
        return f"{self.number}/{self.of}"
