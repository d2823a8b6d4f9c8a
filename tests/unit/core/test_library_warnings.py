"""What libraries warn of does not reach the terminal; what anybody else warns of does."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

SAYS = "import warnings\nwarnings.warn('an affair of its own', {category})\n"


def imported(folder: Path, module: str, category: str, **environment: str) -> str:
    """What is printed when a program of ours imports `module`, which warns."""
    file = folder / Path(*module.split(".")).with_suffix(".py")
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(SAYS.format(category=category))
    program = f"from megatronapp.core import library_warnings\nlibrary_warnings.silence()\nimport {module}\n"
    inherited = {name: value for name, value in os.environ.items() if name != "PYTHONWARNINGS"}
    done = subprocess.run(
        [sys.executable, "-c", program],
        env={**inherited, **environment, "PYTHONPATH": str(folder)},
        capture_output=True,
        text=True,
        check=True,
    )
    return done.stderr


@pytest.mark.parametrize(
    ("module", "category"),
    [("apex", "FutureWarning"), ("triton.runtime", "UserWarning"), ("apex.optimizers", "UserWarning")],
)
def test_a_librarys_warning_is_not_printed(module: str, category: str, tmp_path: Path) -> None:
    assert imported(tmp_path, module, category) == ""


@pytest.mark.parametrize(("module", "category"), [("apex_of_mine", "UserWarning"), ("apex", "RuntimeWarning")])
def test_any_other_is(module: str, category: str, tmp_path: Path) -> None:
    assert "an affair of its own" in imported(tmp_path, module, category)


def test_who_asks_for_warnings_gets_all(tmp_path: Path) -> None:
    assert "an affair of its own" in imported(tmp_path, "apex", "UserWarning", PYTHONWARNINGS="default")
