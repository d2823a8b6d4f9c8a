"""What is special about a kind of device is known in one place: in the detector in profiles, whose values rules read;
in the native parts in native/common, which alone opens the CUDA driver."""

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
RULES = sorted((ROOT / "services/detector/megatronapp/detector/rules").rglob("*.py"))
SOURCES = ("native", "libs", "services")
KINDS = {"on_cpu", "on_gpu", "is_cpu", "is_gpu", "CPU", "GPU", "DEVICE_CPU", "DEVICE_CUDA"}


def kinds_asked_for(source: str) -> set[str]:
    """Names by which code tells one kind of device from another."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Name):
            found.add(node.id)
        elif isinstance(node, ast.Attribute):
            found.add(node.attr)
        elif isinstance(node, ast.alias):
            found.add(node.name)
    return found & KINDS


def test_rules_read_a_profile_and_know_no_device() -> None:
    found = {rule.name: kinds_asked_for(rule.read_text()) for rule in RULES}

    assert found
    assert not {rule: kinds for rule, kinds in found.items() if kinds}


@pytest.mark.parametrize(
    "source",
    [
        "if view.on_cpu(): ...",
        "table.ranks.on_cpu.any()",
        "profile is profiles.GPU",
        "from megatronapp.detector.profiles import CPU",
        "device == trace_pb2.DEVICE_CPU",
    ],
)
def test_each_way_to_ask_for_a_kind_of_device_is_seen(source: str) -> None:
    assert kinds_asked_for(source)


def test_the_cuda_driver_is_opened_in_one_place() -> None:
    files = [file for part in SOURCES for kind in ("*.py", "*.cpp", "*.h") for file in (ROOT / part).rglob(kind)]
    product = {file.resolve() for file in files if not {"tests", "node_modules"} & set(file.parts)}

    openers = {file for file in product if "libcuda.so" in file.read_text()}

    assert openers == {ROOT / "native/common/cuda.h"}
