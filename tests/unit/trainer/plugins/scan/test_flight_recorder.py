"""Where PyTorch's flight recorder is told to listen and write."""

from __future__ import annotations

import argparse
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from megatronapp.trainer.agent import rendezvous
from megatronapp.trainer.environment import Environment
from megatronapp.trainer.plugins.base import Preparation
from megatronapp.trainer.plugins.scan import flight_recorder
from megatronapp.trainer.plugins.scan.flight_recorder import DUMP, OLDER_DUMP, PIPE
from megatronapp.trainer.plugins.scan.plugin import ScanPlugin


@pytest.fixture
def short_folder() -> Iterator[str]:
    """Of a path that leaves room for a socket's name, as pytest's own are too long for."""
    with tempfile.TemporaryDirectory(prefix="m-", dir="/tmp") as folder:
        yield folder


def prepared(monkeypatch: pytest.MonkeyPatch, folder: str, *given: str) -> dict[str, str]:
    monkeypatch.setattr(rendezvous.tempfile, "gettempdir", lambda: folder)
    monkeypatch.setattr(torch.distributed, "is_nccl_available", lambda: True)
    parser = argparse.ArgumentParser()
    ScanPlugin.add_arguments(parser)
    unread: Any = None
    asked = Preparation(environment=Environment.read({}), config=unread, world=unread)
    return dict(ScanPlugin.prepare(parser.parse_args(given), asked).variables)


def test_a_rank_that_is_traced_has_a_recorder_that_listens(monkeypatch: pytest.MonkeyPatch, short_folder: str) -> None:
    variables = prepared(monkeypatch, short_folder, "--trace")

    document = flight_recorder.document(variables, rank=3)

    assert document is not None
    assert document["pipe"] == f"{variables[PIPE]}3.pipe"
    assert document["dump"] == f"{variables[DUMP]}3"
    assert Path(document["dump"]).parent.stat().st_mode & 0o777 == 0o700


def test_without_tracing_nothing_is_set(monkeypatch: pytest.MonkeyPatch, short_folder: str) -> None:
    assert prepared(monkeypatch, short_folder) == {}


@pytest.mark.parametrize("dump", [DUMP, OLDER_DUMP])
def test_what_the_user_has_set_stays_and_is_told(dump: str) -> None:
    environ = {PIPE: "/run/fr-", dump: "/data/fr-"}

    assert flight_recorder.variables(environ) == {}
    assert flight_recorder.document(environ, 0) == {"pipe": "/run/fr-0.pipe", "dump": "/data/fr-0"}


def test_a_recorder_of_which_nobody_knows_where_it_writes_is_not_told() -> None:
    assert flight_recorder.document({PIPE: "/run/fr-"}, 0) is None


def test_files_of_this_process_alone_are_removed(monkeypatch: pytest.MonkeyPatch, short_folder: str) -> None:
    monkeypatch.setattr(rendezvous.tempfile, "gettempdir", lambda: short_folder)
    own = flight_recorder.variables({})[PIPE]
    other = Path(own).with_name(f"recorder-{os.getpid()}0-0.pipe")
    for path in (Path(f"{own}0.pipe"), other):
        path.touch()

    flight_recorder.remove()

    assert list(other.parent.iterdir()) == [other]
