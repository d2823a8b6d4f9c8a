from __future__ import annotations

from pathlib import Path

import pytest


@pytest.fixture(autouse=True)
def quarantine_dir(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where the detectors of a test set records aside."""
    folder = tmp_path / "quarantine"
    monkeypatch.setenv("MEGATRONAPP_DETECTOR_QUARANTINE_DIR", str(folder))
    return folder
