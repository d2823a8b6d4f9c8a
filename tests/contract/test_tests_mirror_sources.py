"""Unit tests stand where their sources do: each folder of tests is named after a package, or after what it tests
beside the packages; a file named after one module lies in that module's folder."""

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
NO_PACKAGES = {"bench", "chart", "compose", "monitoring", "scripts"}
"""Tests of what is none: benchmarks, the chart, docker-compose.yml, alerts and dashboards, scripts."""
AREAS = sorted(folder.name for folder in UNIT.iterdir() if any(folder.rglob("test_*.py")))


def elsewhere(test: Path, unit: Path, package: Path) -> Path | None:
    """Where a test belongs whose name is that of one module in another folder."""
    homes = [module.parent.relative_to(package) for module in package.rglob(test.name.removeprefix("test_"))]
    here = test.parent.relative_to(unit)
    return homes[0] if len(homes) == 1 and homes != [here] else None


@pytest.mark.parametrize("area", AREAS)
def test_a_folder_of_unit_tests_is_named_after_a_package(area: str) -> None:
    if area in NO_PACKAGES:
        return
    folders = {test.parent.relative_to(UNIT / area) for test in (UNIT / area).rglob("test_*.py")}

    assert area in PACKAGES
    assert not {str(folder) for folder in folders if not (PACKAGES[area] / folder).is_dir()}


@pytest.mark.parametrize("area", sorted(PACKAGES.keys() & set(AREAS)))
def test_a_test_lies_in_the_folder_of_the_module_that_it_is_named_after(area: str) -> None:
    tests = (UNIT / area).rglob("test_*.py")

    assert {str(test): home for test in tests if (home := elsewhere(test, UNIT / area, PACKAGES[area]))} == {}


def test_what_is_no_package_is_there_and_is_none() -> None:
    assert set(AREAS) >= NO_PACKAGES
    assert not NO_PACKAGES & PACKAGES.keys()


def test_a_test_in_the_wrong_folder_is_seen(tmp_path: Path) -> None:
    package, unit = tmp_path / "package", tmp_path / "unit"
    for module in ("rules/hang.py", "rules/base.py", "signals/base.py"):
        (package / module).parent.mkdir(parents=True, exist_ok=True)
        (package / module).touch()

    assert elsewhere(unit / "test_hang.py", unit, package) == Path("rules")
    assert elsewhere(unit / "rules/test_hang.py", unit, package) is None
    assert elsewhere(unit / "test_base.py", unit, package) is None


def test_a_mark_that_takes_a_test_out_of_make_test_puts_it_into_another_target() -> None:
    """`make e2e` plays the folder of that name alone; a test elsewhere that is left out of `make test` is `long`."""
    elsewhere = [
        path for path in (ROOT / "tests").rglob("test_*.py") if "e2e" not in path.parts and path != Path(__file__)
    ]

    assert [path for path in elsewhere if "mark.e2e" in path.read_text()] == []
