"""docs/architecture.md is the map: it names every package, and nothing that is not there."""

import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
MAP = (ROOT / "docs" / "architecture.md").read_text()


def packages() -> set[str]:
    """Folders with Python files under libs, services and native."""
    found = set()
    for top in ("libs", "services", "native"):
        for path in (ROOT / top).glob("*/megatronapp*/**/*.py"):
            found.add(path.parent.relative_to(ROOT).as_posix())
    return found


def test_every_package_is_on_the_map() -> None:
    assert not {package for package in packages() if f"`{package}`" not in MAP}


def test_the_map_names_no_package_that_is_not_there() -> None:
    named = re.findall(r"^\| `((?:libs|services|native)/[^`]+)` \|", MAP, flags=re.MULTILINE)

    assert named
    assert not [folder for folder in named if not (ROOT / folder).is_dir()]


def test_files_that_the_map_names_are_there() -> None:
    text = re.sub(r"https?://\S+", "", MAP)
    named = re.findall(r"`((?:[a-z_]+/)+[a-z_]+\.(?:py|ts|proto))`", text)
    tops = ("libs", "services", "proto", "tests")
    known = {path.relative_to(ROOT).as_posix() for top in tops for path in _files(top)}

    missing = [file for file in named if not any(f"/{path}".endswith(f"/{file}") for path in known)]

    assert named
    assert not missing


def _files(top: str) -> list[Path]:
    return [
        path
        for kind in ("py", "ts", "proto")
        for path in (ROOT / top).rglob(f"*.{kind}")
        if "node_modules" not in path.parts
    ]
