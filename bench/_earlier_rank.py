"""A rank of bench.earlier, of whichever version its PYTHONPATH names: the last one prints losses and times as JSON."""

from __future__ import annotations

import json
import sys
from typing import Any

from megatronapp import trainer
from megatronapp.trainer.launch import run


class Kept:
    """A reporter that remembers."""

    def __init__(self) -> None:
        self.losses: list[float] = []
        self.seconds: list[float] = []

    def step(self, report: Any) -> None:
        self.losses.append(report.loss)
        self.seconds.append(report.step_seconds)

    def evaluation(self, report: Any) -> None:
        raise AssertionError("none is asked for")

    def close(self) -> None:
        found = {"trainer": trainer.__file__, "losses": self.losses, "seconds": self.seconds}
        print(json.dumps(found), flush=True)


if __name__ == "__main__":
    run(sys.argv[1:], reporters=[Kept()], plugins=())
