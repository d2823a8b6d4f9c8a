"""What the images are built of."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]
TRAINER = (ROOT / "services/trainer/Dockerfile").read_text().replace("\\\n", " ")


@pytest.mark.parametrize("project", sorted(file.parent.name for file in ROOT.glob("native/*/pyproject.toml")))
def test_the_trainers_image_has_every_native_wheel(project: str) -> None:
    (built,) = re.findall(r"pip wheel ([^&]*)", TRAINER)

    assert f"/src/native/{project}" in built.split()


def test_the_trainers_image_has_the_library_that_the_transport_opens() -> None:
    opened = re.findall(r'library\("lib(\w+)\.so\.0", "UCX"\)', (ROOT / "native/rdma/src/drivers/ucx.cpp").read_text())
    last_stage = TRAINER.rsplit("\nFROM ", 1)[1]

    assert opened == ["ucp"]
    assert re.search(r"apt-get install \S.* libucx0\b", last_stage)
