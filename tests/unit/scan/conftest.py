from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

COMMON = Path(__file__).parents[3] / "native/common"


@pytest.fixture(scope="session")
def compiled(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The writer of native/common/tests/writer."""
    if shutil.which("c++") is None:
        pytest.skip("needs a C++ compiler")
    program = tmp_path_factory.mktemp("writer") / "writer"
    source = COMMON / "tests/writer/main.cpp"
    flags = ["-std=c++17", "-O2", "-Wall", "-Wextra", "-Werror", "-pthread"]
    subprocess.run(["c++", *flags, f"-I{COMMON.parent}", str(source), "-o", str(program)], check=True)
    return program
