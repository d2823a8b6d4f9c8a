"""Modules are patched when they have run, whoever imports them, and an unknown version of one stops nobody."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

from megatronapp.trainer.attach.late_imports import LateImports


@pytest.fixture
def failures() -> list[str]:
    return []


@pytest.fixture
def late(failures: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[LateImports]:
    (tmp_path / "late_library.py").write_text("def answer():\n    return 1\n")
    (tmp_path / "late_reexport.py").write_text("from late_library import answer\n")
    monkeypatch.syspath_prepend(tmp_path)
    late = LateImports(lambda name, error: failures.append(f"{name}: {error}"))
    sys.meta_path.insert(0, late)
    yield late
    sys.meta_path.remove(late)
    for name in ("late_library", "late_reexport"):
        sys.modules.pop(name, None)


def answer_two(module: ModuleType) -> None:
    module.answer = lambda: 2  # type: ignore[attr-defined]


def test_who_imports_a_name_from_it_gets_the_patched_one(late: LateImports) -> None:
    late.when_imported("late_library", answer_two)

    module = importlib.import_module("late_reexport")

    assert module.answer() == 2


def test_a_module_looks_as_if_nobody_had_been_there(late: LateImports) -> None:
    late.when_imported("late_library", answer_two)

    module = importlib.import_module("late_library")

    assert type(module.__loader__).__name__ == "SourceFileLoader"
    assert module.__spec__ is not None
    assert module.__spec__.loader is module.__loader__


def test_one_that_is_there_already_is_patched_at_once(late: LateImports) -> None:
    module = importlib.import_module("late_library")

    late.when_imported("late_library", answer_two)

    assert module.answer() == 2


def test_a_patch_that_fails_is_named_and_the_import_goes_on(late: LateImports, failures: list[str]) -> None:
    def unknown_version(module: ModuleType) -> None:
        raise AttributeError("what is gone")

    late.when_imported("late_library", unknown_version)

    module = importlib.import_module("late_library")

    assert module.answer() == 1
    assert failures == ["late_library: what is gone"]
