"""How the demo ends for somebody who watches it and presses Ctrl-C: by itself, and midway."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest

DEMO_SECONDS = 120.0
LIBRARY_WARNING = re.compile(r"(User|Future|Deprecation|Resource)Warning")
END_SECONDS = 20.0
"""Four ranks save a checkpoint before they end, on two busy cores."""

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(180)]


class Demo:
    """The running command and what it prints."""

    def __init__(self, home: Path, *flags: str) -> None:
        inherited = {name: value for name, value in os.environ.items() if not name.startswith(("MEGATRONAPP_", "XDG_"))}
        self._output = home / "demo.log"
        self.process = subprocess.Popen(
            [sys.executable, "-m", "megatronapp.cli.main", "demo", "--port", "0", *flags],
            env={**inherited, "HOME": str(home), "COLUMNS": "200"},
            stdout=self._output.open("w"),
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )

    @property
    def printed(self) -> str:
        return self._output.read_text()

    def wait_for(self, text: str) -> None:
        deadline = time.monotonic() + DEMO_SECONDS
        while text not in self.printed:
            assert self.process.poll() is None, self.printed
            assert time.monotonic() < deadline, self.printed
            time.sleep(0.1)

    def interrupt(self) -> tuple[int, list[psutil.Process]]:
        """As Ctrl-C on a terminal, which every process of the group gets; the exit status, and who outlives it."""
        children = psutil.Process(self.process.pid).children(recursive=True)
        os.killpg(self.process.pid, signal.SIGINT)
        status = self.process.wait(END_SECONDS)
        return status, [child for child in children if child.is_running()]

    def kill(self) -> None:
        """Whatever is still there."""
        if self.process.poll() is None:
            for process in (*psutil.Process(self.process.pid).children(recursive=True), self.process):
                process.kill()
            self.process.wait(10)


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[..., Demo]]:
    """Starts demos; none of their processes is there after the test."""
    demos: list[Demo] = []

    def started(*flags: str) -> Demo:
        demos.append(Demo(tmp_path, *flags))
        return demos[-1]

    yield started
    for demo in demos:
        demo.kill()


def test_a_short_demo_says_how_it_ended_and_stays_until_it_is_interrupted(start: Callable[..., Demo]) -> None:
    demo = start("--steps", "10")

    demo.wait_for("Ctrl-C ends the demo.")
    status, left = demo.interrupt()

    assert (status, left) == (0, [])
    assert "The run ends with step 10, before it begins: nothing will be slow." in demo.printed
    assert "The run has finished at step 10 of 10.\nnothing was found\n" in demo.printed
    assert not LIBRARY_WARNING.search(demo.printed), demo.printed
    assert "Traceback" not in demo.printed, demo.printed


def test_a_demo_that_is_interrupted_midway_ends_with_all_its_ranks(start: Callable[..., Demo]) -> None:
    demo = start()

    demo.wait_for("/600\n")  # of step 10, or of the one after it
    ranks = psutil.Process(demo.process.pid).children(recursive=True)
    status, left = demo.interrupt()

    assert len(ranks) >= 4
    assert (status, left) == (0, [])
    assert re.search(r"^The run has stopped at step \d+ of 600\.$", demo.printed, re.M), demo.printed
    assert not LIBRARY_WARNING.search(demo.printed), demo.printed
    assert "Traceback" not in demo.printed, demo.printed
