"""The committed stubs are what proto/ generates."""

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PROTOS = sorted(path.name for path in (ROOT / "proto/megatronapp/v1").glob("*.proto"))


@pytest.mark.parametrize("proto", PROTOS)
def test_stubs_have_not_drifted(proto: str, tmp_path: Path) -> None:
    outputs = [f"--{kind}_out={tmp_path}" for kind in ("python", "pyi", "grpc_python")]
    subprocess.run(
        [sys.executable, "-m", "grpc_tools.protoc", "-Iproto", *outputs, f"proto/megatronapp/v1/{proto}"],
        cwd=ROOT,
        check=True,
    )

    generated = sorted((tmp_path / "megatronapp/v1").iterdir())

    assert len(generated) == 3
    for file in generated:
        committed = ROOT / "libs/api/megatronapp/v1" / file.name
        assert committed.read_text() == file.read_text(), f"{file.name} drifted: run `make proto`"
