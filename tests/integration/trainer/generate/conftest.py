"""One checkpoint for all tests of text."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.integration.trainer.generate.models import trained


@pytest.fixture(scope="session")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Of the tiny GPT; nobody writes to it."""
    return trained(tmp_path_factory.mktemp("model"))
