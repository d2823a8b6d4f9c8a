"""A rank of bench.earlier, of whichever version its PYTHONPATH names: the last one prints losses and times as JSON."""

from __future__ import annotations

import json
import sys
import time
from typing import Any

from megatronapp import trainer
from megatronapp.trainer.launch import run


class Kept:
    """A reporter that remembers."""

    def __init__(self) -> None:
        self.losses: list[float] = []
        self.seconds: list[float] = []
        self.processor: list[float] = []
        """Seconds of it that the process has had at the end of each step."""

    def step(self, report: Any) -> None:
        self.losses.append(report.loss)
        self.seconds.append(report.step_seconds)
        self.processor.append(time.process_time())

    def evaluation(self, report: Any) -> None:
        raise AssertionError("none is asked for")

    def close(self) -> None:
        kept = {"losses": self.losses, "seconds": self.seconds, "processor": self.processor}
        print(json.dumps({"trainer": trainer.__file__, **kept}), flush=True)


if __name__ == "__main__":
    run(sys.argv[1:], reporters=[Kept()], plugins=())
