"""What a rank does not import, and that everybody else still can."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from megatronapp.trainer.lean_imports import without

PROGRAM = """
import json, sys
import megatronapp.trainer.launch
heavy = ("grpc", "google.protobuf", "pydantic", "tensorboard", "megatronapp.v1")
print(json.dumps(sorted(name for name in sys.modules if name.startswith(heavy))))
from torch.utils.tensorboard import SummaryWriter
print(json.dumps(SummaryWriter.__name__))
"""


def test_the_trainer_imports_neither_protobuf_nor_tensorboard_and_a_user_still_can() -> None:
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=True)

    imported, writer = (json.loads(line) for line in done.stdout.splitlines())
    assert imported == []
    assert writer == "SummaryWriter"


def test_a_module_that_is_left_out_looks_not_installed_and_comes_back() -> None:
    sys.modules.pop("wave", None)
    with without("wave"), pytest.raises(ImportError):
        import wave

    import wave

    assert wave.__name__ == "wave"


def test_a_module_that_was_there_before_stays() -> None:
    with without("json"):
        import json as again

    assert again is json
