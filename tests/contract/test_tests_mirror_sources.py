"""Unit tests stand where their sources do: each folder of tests is named after a package."""

from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
UNIT = ROOT / "tests" / "unit"
PACKAGES = {
    package.name: package
    for part in ("libs", "services", "native")
    for package in (ROOT / part).glob("*/megatronapp/*")
    if (package / "__init__.py").exists()
}


@pytest.mark.parametrize("area", sorted(PACKAGES.keys() & {folder.name for folder in UNIT.iterdir()}))
def test_a_folder_of_unit_tests_is_named_after_a_package(area: str) -> None:
    folders = {test.parent.relative_to(UNIT / area) for test in (UNIT / area).rglob("test_*.py")}

    assert folders
    assert not {str(folder) for folder in folders if not (PACKAGES[area] / folder).is_dir()}
