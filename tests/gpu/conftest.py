"""Which tests there are GPUs for. MEGATRONAPP_GPUS_ABOVE=2 leaves out those that two are enough for."""

from __future__ import annotations

import os

import pytest

from tests.gpu.devices import DEVICES

ABOVE = int(os.environ.get("MEGATRONAPP_GPUS_ABOVE", "0"))


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    for item in items:
        if (devices := needed(item)) > DEVICES:
            item.add_marker(pytest.mark.skip(reason=f"needs {devices} CUDA devices"))
    if ABOVE:
        config.hook.pytest_deselected(items=[item for item in items if needed(item) <= ABOVE])
        items[:] = [item for item in items if needed(item) > ABOVE]


def needed(item: pytest.Item) -> int:
    return max((mark.args[0] for mark in item.iter_markers("needs_gpus")), default=0)
