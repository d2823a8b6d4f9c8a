"""Every service says in its folder what it is made of, and names no file that is not there."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

SERVICES = sorted(path for path in (Path(__file__).resolve().parents[3] / "services").iterdir() if path.is_dir())


@pytest.mark.parametrize("service", SERVICES, ids=lambda path: path.name)
def test_it_has_one_whose_files_are_there(service: Path) -> None:
    text = (service / "README.md").read_text()
    rows = (row.split("|")[1] for row in text.splitlines() if row.startswith("| `"))
    named = [name for row in rows for name in re.findall(r"`([\w/]+(?:\.py|/))`", row)]

    (package,) = service.glob("megatronapp/*/") if (service / "megatronapp").is_dir() else (service,)
    assert [name for name in named if not (package / name).exists()] == []
