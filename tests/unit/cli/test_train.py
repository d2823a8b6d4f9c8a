"""What `megatronapp train` says, before anything heavy is imported."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

PROGRAM = """
import json, sys
from megatronapp.cli.main import main
sys.argv[0] = "megatronapp"
code = None
try:
    main()
except SystemExit as end:
    code = end.code
heavy = {"torch", "megatron", "transformers", "grpc"}
print(json.dumps([code, sorted(heavy & sys.modules.keys())]))
"""


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        ((), "the following arguments are required: --num-layers, "),
        (("--no-such-flag",), "error: "),
    ],
)
def test_what_is_wrong_is_said_without_torch(flags: tuple[str, ...], said: str) -> None:
    done = subprocess.run([sys.executable, "-c", PROGRAM, "train", *flags], capture_output=True, text=True, check=True)

    assert said in done.stderr
    assert len(done.stderr.splitlines()) == 1
    assert json.loads(done.stdout.splitlines()[-1]) == [2, []]
