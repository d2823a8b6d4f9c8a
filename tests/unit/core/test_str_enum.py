"""StrEnum for Pythons that lack it is what Python 3.11's is, for values that are given."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from megatronapp.core import str_enum

PROGRAM = """
from str_enum import StrEnum
class Colour(StrEnum):
    RED = "red"
print(Colour.RED, f"{Colour.RED:>4}", Colour("red") is Colour.RED, Colour.RED == "red")
"""


@pytest.mark.parametrize("version", ["3.10", "3.11"])
def test_members_are_their_values(version: str) -> None:
    python = sys.executable if version == "3.11" else shutil.which(f"python{version}")
    if python is None or subprocess.run([python, "-c", ""], capture_output=True, check=False).returncode:
        pytest.skip(f"no Python {version} here")
    folder = Path(str_enum.__file__).parent

    done = subprocess.run(
        [python, "-c", f"import sys; sys.path.append({str(folder)!r})\n{PROGRAM}"],
        capture_output=True,
        text=True,
        check=True,
    )

    assert done.stdout.split() == ["red", "red", "True", "True"]
