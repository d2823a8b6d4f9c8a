"""Versions of torch, Python and megatron-core: what docs/attach.md's table says of each. `make attach-versions`

MEGATRONAPP_TRAINING_PYTHONS names interpreters of training environments; of several gigabytes each, no test makes them
(scripts/attach-versions does).
"""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path
from typing import Any

import pytest

from megatronapp.core.trace import file as trace_file
from megatronapp.trainer.attach import light
from tests.integration.trainer.attach.versions import CORES, note
from tests.integration.trainer.plugins.scan.traced import RankTrace, read
from tests.support.attached import SCRIPTS, Ended, every_step, run
from tests.support.training_environment import megatron_core

VARIABLE = "MEGATRONAPP_TRAINING_PYTHONS"
PYTHONS = list(filter(None, os.environ.get(VARIABLE, "").split(os.pathsep)))
VERSIONS = "import sys, torch; print('.'.join(map(str, sys.version_info[:2])), torch.__version__)"
STEPS, STAGES, MICROBATCHES = 4, 2, 4
SECONDS = 600.0
WITHOUT_MESSAGES = "0.14.0"
pytestmark = [
    pytest.mark.long,
    pytest.mark.exhaustive,
    pytest.mark.timeout(2 * SECONDS + 60),
    pytest.mark.skipif(not PYTHONS, reason=f"{VARIABLE} names no training environment"),
    pytest.mark.parametrize("python", PYTHONS),
]


def noted(python: str, program: str, seen: str) -> None:
    version, torch = subprocess.run([python, "-c", VERSIONS], capture_output=True, text=True, check=True).stdout.split()
    note(torch.partition("+")[0], version, program, seen)


def alone(python: str, program: str, script: Path, *arguments: int, **options: Any) -> Ended:
    """The script without us. Skips the test where it fails: FSDP2 of torch 2.6 wants a GPU."""
    plain = run(script, *arguments, python=python, timeout=SECONDS, **options)
    if plain.code:
        error = own_error(plain.output)
        assert error, f"it ended without an error of its own: {plain.output[-1000:]}"  # as one that took too long
        noted(python, program, "does not run on a CPU")
        pytest.skip(f"{program}: {error}")
    return plain


def own_error(output: str) -> str:
    """Why the script ended: the rank's own error, before torchrun's summary of it. Empty: it has said none."""
    errors = [line for line in output.splitlines() if re.search(r"\b\w+Error: ", line) and "ChildFailed" not in line]
    return errors[0][-300:] if errors else ""


def without_gpu(folder: Path) -> dict[str, str]:
    """megatron-core 0.15.0 compiles an allocator when it is imported, for the GPUs that are there: with a CUDA build of
    torch, nvcc at hand and no GPU that is an IndexError, unless it is told for which."""
    return {"TORCH_CUDA_ARCH_LIST": "9.0", "TORCH_EXTENSIONS_DIR": str(folder / "extensions")}


def unhurt(plain: Ended, attached: Ended) -> None:
    assert attached.code == plain.code == 0, attached.output
    assert attached.lines("loss") == plain.lines("loss") != []
    assert not [line for line in attached.said if "not attached" in line or "nothing is seen" in line]


@pytest.mark.parametrize("script", ["ddp", "fsdp2"])
def test_a_loop_is_seen_and_computes_what_it_did_before(tmp_path: Path, python: str, script: str) -> None:
    plain = alone(python, script, SCRIPTS / f"{script}.py", STEPS)

    attached = run(SCRIPTS / f"{script}.py", STEPS, python=python, attach=every_step(tmp_path), timeout=SECONDS)

    unhurt(plain, attached)
    assert sum("steps and collectives" in line for line in attached.said) == 1, attached.said
    assert not [line for line in attached.said if "not seen" in line]
    for rank in range(2):
        check(read(trace_file.path_for(tmp_path, f"local/{script}", 1, rank)), script)
    noted(python, script, "all")


def check(trace: RankTrace, script: str) -> None:
    assert [summary.step for summary in trace.summaries] == list(range(1, STEPS + 1))
    microbatches = [0] if script == "ddp" else [0, 1]
    for name in ("forward", "backward"):
        assert [span.microbatch for span in trace.of(name, step=3)] == microbatches
    assert len(trace.of("grad_sync", step=3)) == len(microbatches)
    assert len(trace.of("optimizer", step=3)) == 1
    assert len(trace.of("reduce_scatter", step=3)) == (0 if script == "ddp" else 8)
    assert len(trace.of("data", step=3)) == (1 if script == "ddp" else 0)


@pytest.mark.parametrize("core", CORES)
def test_a_loop_on_megatron_core_is_seen_and_computes_what_it_did_before(
    tmp_path: Path, python: str, core: str
) -> None:
    light.main([str(tmp_path / "light")])  # the script takes the shim for CUDA from us
    packages = [megatron_core(tmp_path / "core", core), tmp_path / "light/rank"]
    where = {"PYTHONPATH": os.pathsep.join(map(str, packages)), **without_gpu(tmp_path)}
    script, attach = SCRIPTS / "megatron_core_loop.py", every_step(tmp_path)
    plain = alone(python, core, script, STEPS, STAGES, environment=where)

    attached = run(script, STEPS, STAGES, python=python, environment=where, attach=attach, timeout=SECONDS)

    unhurt(plain, attached)
    assert sum(": full: " in line for line in attached.said) == 1, attached.said
    seen_less = core == WITHOUT_MESSAGES
    assert sum("messages between stages are not seen" in line for line in attached.said) == seen_less, attached.said
    for rank in range(STAGES):
        check_core(read(trace_file.path_for(tmp_path, "local/megatron-core-loop", 1, rank)), messages=not seen_less)
    noted(python, core, "all but messages" if seen_less else "all")


def check_core(trace: RankTrace, *, messages: bool) -> None:
    assert [summary.step for summary in trace.summaries] == list(range(1, STEPS + 1))
    for name in ("forward", "backward"):
        assert [span.microbatch for span in trace.of(name, step=2)] == list(range(MICROBATCHES))
    assert len({span.layer for span in trace.of("layer_backward", step=2)}) == 4
    assert len(trace.of("optimizer", step=2)) == 1
    assert len(trace.of("forward_send", "forward_recv", step=2)) == (MICROBATCHES if messages else 0)
