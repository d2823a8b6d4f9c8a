"""The start hook in processes that are not ours: with a sitecustomize of their own, without our package, untold."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from megatronapp.trainer.attach.launch import START_FOLDER, with_start_folder

HEAVY = ("torch", "numpy", "grpc", "pydantic", "structlog", "argparse")
PROGRAM = f"""
import sys
print(sorted(name for name in {HEAVY} if name in sys.modules))
import sitecustomize
print(sitecustomize.__file__)
"""
TWICE_WITHOUT_PACKAGES = """
import site, subprocess, sys  # -S: no site-packages
site.execsitecustomize()
subprocess.run([sys.executable, "-S", "-c", "import site; site.execsitecustomize()"])
print("goes on")
"""


def start(*flags: str, **variables: str) -> tuple[list[str], str]:
    """Lines of standard output and what is on standard error."""
    clean = {name: value for name, value in os.environ.items() if not name.startswith("MEGATRONAPP_")}
    done = subprocess.run(
        [sys.executable, *flags, "-c", PROGRAM], env={**clean, **variables}, capture_output=True, text=True, check=True
    )
    return done.stdout.splitlines(), done.stderr


@pytest.mark.parametrize("told", [{}, {"MEGATRONAPP_ATTACH": '["--trace"]'}])
def test_a_process_starts_with_nothing_heavy_and_nothing_said(told: dict[str, str]) -> None:
    (imported, _), said = start(PYTHONPATH=str(START_FOLDER), **told)

    assert imported == "[]"
    assert said == ""


def test_the_sitecustomize_that_it_stands_before_runs_too(tmp_path: Path) -> None:
    own = tmp_path / "sitecustomize.py"
    own.write_text("import sys; sys.stderr.write('their own')")

    (_, file), said = start(PYTHONPATH=with_start_folder(str(tmp_path)), MEGATRONAPP_ATTACH="[]")

    assert file == str(own)
    assert said == "their own"


def test_where_the_package_is_not_installed_it_says_so_once_and_goes_on() -> None:
    done = subprocess.run(
        [sys.executable, "-S", "-c", TWICE_WITHOUT_PACKAGES],
        env={"PATH": os.environ["PATH"], "PYTHONPATH": str(START_FOLDER), "MEGATRONAPP_ATTACH": "[]"},
        capture_output=True,
        text=True,
        check=True,
    )

    assert done.stdout == "goes on\n"
    [line] = done.stderr.splitlines()
    assert line.startswith("megatronapp: not attached: No module named 'megatronapp'")
