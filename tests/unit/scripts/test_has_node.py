"""A Node that can't build the page counts as none."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]


@pytest.mark.parametrize(
    ("node", "npm", "enough"),
    [
        ("v20.19.2", "10.8.2", True),
        ("v22.20.0", "9.5.0", True),
        ("v20.19.2", "9.2.0", False),
        ("v20.18.0", "10.8.2", False),
        ("v18.20.4", "9.2.0", False),
    ],
)
def test_versions(node: str, npm: str, enough: bool, tmp_path: Path) -> None:
    for name, version in (("node", node), ("npm", npm)):
        (tmp_path / name).write_text(f"#!/bin/sh\necho {version}\n")
        (tmp_path / name).chmod(0o755)

    done = subprocess.run(
        [ROOT / "scripts" / "has-node"], env={"PATH": f"{tmp_path}:{os.environ['PATH']}"}, check=False
    )

    assert (done.returncode == 0) == enough


def test_a_machine_without_node(tmp_path: Path) -> None:
    done = subprocess.run(["/bin/sh", ROOT / "scripts" / "has-node"], env={"PATH": str(tmp_path)}, check=False)

    assert done.returncode != 0
