"""StrEnum for Pythons that lack it is what Python 3.11's is, for values that are given."""

from __future__ import annotations

import enum
import importlib.util
from types import ModuleType

import pytest

from megatronapp.core import str_enum


@pytest.fixture(params=["with", "without"])
def module(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """As a Python with StrEnum imports it, and one without."""
    if request.param == "without":
        monkeypatch.delattr(enum, "StrEnum")
        monkeypatch.setattr("sys.version_info", (3, 10, 0))
    spec = importlib.util.spec_from_file_location("anew", str_enum.__file__)
    assert spec is not None
    assert spec.loader is not None
    found = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(found)
    return found


def test_members_are_their_values(module: ModuleType) -> None:
    colours = module.StrEnum("Colour", {"RED": "red"})

    assert (str(colours.RED), f"{colours.RED:>4}", colours("red")) == ("red", " red", colours.RED)
    assert colours.RED == "red"
