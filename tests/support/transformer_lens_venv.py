"""TransformerLens as a reference: in a virtual environment of its own, as its pins of numpy and Hugging Face's packages
are not ours."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

ROOT = Path(__file__).parents[2]
PYTHON = ROOT / ".venv-transformer-lens" / "bin" / "python"
FORWARD = Path(__file__).with_name("transformer_lens_forward.py")
HOW = "make transformer-lens"
Floats = npt.NDArray[np.float32]


def transformer_lens_cache(
    weights: Mapping[str, Floats], tokens: list[list[int]], config: Mapping[str, Any], folder: Path
) -> dict[str, Floats]:
    """What each of its hook points sees of these tokens, and `logits`. Skips the test where it is not installed."""
    if not PYTHON.exists():
        pytest.skip(f"TransformerLens is not installed: {HOW}")
    given, wanted = folder / "model.npz", folder / "transformer-lens.npz"
    np.savez(given, tokens=np.array(tokens), config=np.array(json.dumps(config)), **weights)  # type: ignore[arg-type]
    subprocess.run([PYTHON, "-P", FORWARD, given, wanted], check=True, timeout=300)  # -P: not our packages beside it
    with np.load(wanted) as file:
        return {name: file[name] for name in file.files}
