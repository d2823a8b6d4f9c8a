"""The places of our packages, which hatch, mypy and import-linter each want to be told: they agree with the folders."""

from __future__ import annotations

import configparser
import tomllib
from pathlib import Path

import pytest

from tests.support.helm import ROOT

PYPROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
ROOTS = {
    path.parent.relative_to(ROOT).as_posix()
    for kind in ("libs", "services", "native")
    for path in (ROOT / kind).glob("*/megatronapp")
    if any(path.glob("*/*.py"))
}
NATIVE = {root for root in ROOTS if root.startswith("native/")}
"""Wheels of their own."""


def test_there_are_roots_to_compare() -> None:
    assert {"libs/core", "services/detector", "native/rdma"} <= ROOTS


def test_the_wheel_and_an_editable_install_hold_all_that_is_no_wheel_of_its_own() -> None:
    hatch = PYPROJECT["tool"]["hatch"]["build"]

    assert {package.removesuffix("/megatronapp") for package in hatch["packages"]} == ROOTS - NATIVE
    assert set(hatch["dev-mode-dirs"]) == ROOTS - NATIVE


def test_mypy_finds_all() -> None:
    assert set(PYPROJECT["tool"]["mypy"]["mypy_path"].split(":")) == ROOTS


def test_import_linter_reads_all() -> None:
    config = configparser.ConfigParser()
    config.read(ROOT / ".importlinter")

    packages = {path.name for root in ROOTS for path in (ROOT / root / "megatronapp").iterdir() if _is_package(path)}

    assert set(config["importlinter"]["root_packages"].split()) == {f"megatronapp.{name}" for name in packages}
    circles = config["importlinter:contract:circles"]["ancestors"].split()
    assert set(circles) == {f"megatronapp.{name}" for name in packages} - {"megatronapp.v1"}


@pytest.mark.parametrize("root", sorted(ROOTS))
def test_no_init_makes_the_namespace_somebodys(root: str) -> None:
    assert not (ROOT / root / "megatronapp/__init__.py").exists()


def _is_package(path: Path) -> bool:
    return path.is_dir() and any(path.rglob("*.py"))
