"""docs/settings.md is what the code says, and the other documents name no setting that is not in it."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from megatronapp.core.settings import ServiceSettings
from scripts import settings_reference

ROOT = Path(__file__).resolve().parents[2]
VARIABLE = re.compile(r"MEGATRONAPP_[A-Z]+(?:_[A-Z]+)*(?![A-Z_…])")
OF_OTHERS = {"MEGATRONAPP_VERSION", "MEGATRONAPP_UI_GATEWAY", "MEGATRONAPP_KILL_ROUNDS"}
"""Read by docker compose, by the page's development server, by a test."""
FOLDERS = (".", "docs", "docs/runbooks", "services/*", "native/*", "examples/**")
DOCUMENTS = sorted(file for folder in FOLDERS for file in ROOT.glob(f"{folder}/*.md"))


def listed() -> set[str]:
    text = settings_reference.DOCUMENT.read_text()
    common = re.findall(r"MEGATRONAPP_SERVICE_(\w+)", text)
    prefixes = [str(kind.model_config["env_prefix"]) for kind in settings_reference.SERVICES.values()]
    return set(VARIABLE.findall(text)) | {prefix + name for prefix in prefixes for name in common}


def constants(file: Path) -> Iterator[str]:
    """The variables that a module names as they are, not in a sentence."""
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and VARIABLE.fullmatch(node.value):
            yield node.value


def test_the_reference_is_what_the_code_says() -> None:
    written = settings_reference.DOCUMENT.read_text()

    assert written == settings_reference.document(), "run `make reference`"


@pytest.mark.parametrize("sources", ["libs", "services", "native"])
def test_every_variable_that_the_code_names_is_listed(sources: str) -> None:
    modules = [file for file in (ROOT / sources).rglob("*.py") if "node_modules" not in file.parts]

    named = {name: file for file in modules for name in constants(file)}

    assert {name: str(named[name]) for name in named.keys() - listed()} == {}


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda file: str(file.relative_to(ROOT)))
def test_a_document_names_no_variable_that_nothing_reads(document: Path) -> None:
    named = set(VARIABLE.findall(document.read_text()))

    assert named - listed() - OF_OTHERS == set()


def test_a_setting_without_a_description_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    class Undescribed(ServiceSettings):
        depth: int = 1

    monkeypatch.setitem(settings_reference.SERVICES, "detector", Undescribed)

    with pytest.raises(ValueError, match="MEGATRONAPP_DEPTH has no description"):
        settings_reference.document()
