"""What an attached program's user reads on the terminal: single lines, as ranks share a pipe."""

from __future__ import annotations

import os
import sys


def say(text: str) -> None:
    sys.stderr.write(f"megatronapp: {text}\n")  # in one write


def say_once(text: str) -> None:
    """For all ranks, by the first."""
    if os.environ.get("RANK", "0") == "0":
        say(text)
