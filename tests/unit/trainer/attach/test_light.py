"""What a rank needs of ours, as a folder: in an environment that has none of it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from megatronapp.trainer.attach import light

MAX_BYTES = 5 << 20
PROGRAM = """
import sys
import megatronapp.trainer.attach.process as found
print(found.__file__)
print(sorted(name for name in ("grpc", "google.protobuf", "pydantic", "structlog", "torch") if name in sys.modules))
"""
"""-S: no site-packages."""
START = "import site; site.execsitecustomize()\n"


def bytes_of(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())


def test_a_copy_is_small_and_all_that_a_rank_imports(tmp_path: Path) -> None:
    assert light.main([str(tmp_path)]) == 0

    done = subprocess.run(
        [sys.executable, "-S", "-c", START + PROGRAM],
        env={"PATH": os.environ["PATH"], "PYTHONPATH": str(tmp_path / "start"), "MEGATRONAPP_ATTACH": "[]"},
        capture_output=True,
        text=True,
        check=True,
    )

    assert done.stderr == ""
    file, heavy = done.stdout.splitlines()
    assert Path(file).is_relative_to(tmp_path / "rank")
    assert heavy == "[]"
    assert bytes_of(tmp_path) < MAX_BYTES


def test_links_are_there_for_as_long_as_they_are_used() -> None:
    with light.linked() as start:
        folder = start.parent
        assert (folder / "rank/megatronapp/attach.py").is_file()
        assert (start / "sitecustomize.py").is_file()

    assert not folder.exists()
    assert light.START_FOLDER.is_dir()


def test_without_a_temporary_folder_the_installation_is_used(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(**_: object) -> str:
        raise OSError

    monkeypatch.setattr("tempfile.mkdtemp", refuse)

    with light.linked() as start:
        assert start == light.START_FOLDER


LACKING = """
import sys

class Lacks:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in {"grpc", "google", "pydantic", "structlog", "yaml", "tokenizers", "safetensors"}:
            raise ImportError(f"{name} is not installed")

sys.meta_path.insert(0, Lacks())
from megatronapp.core.logging import be_a_guest
be_a_guest()
import megatronapp.trainer.attach.opening
import megatronapp.trainer.plugins.scope.plugin
"""


def test_a_rank_that_is_looked_into_needs_torch_numpy_and_megatron_core_alone() -> None:
    done = subprocess.run([sys.executable, "-c", LACKING], capture_output=True, text=True, check=False)

    assert done.returncode == 0, done.stderr
