"""A training that dies of its numbers sends its last frames first, of all stages: also of one that is killed."""

from __future__ import annotations

import argparse
import os
import signal
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, ClassVar

import pytest
import torch

from megatronapp.trainer import launch  # noqa: F401  (imported once, before the ranks are forked)
from megatronapp.trainer.plugins.base import Plugin, PluginContext
from megatronapp.v1 import scope_pb2
from tests.support.forked import RankFailedError
from tests.support.overflowing import (
    EACH_MICROBATCH_OF,
    INFINITE_LOSS,
    NOT_NUMBERS,
    layers_shown,
    overflow,
    told_of_nonfinite,
)
from tests.support.scoped_job import ScopedJob, scoped_job
from tests.support.training import train

STAGES_2 = "--pipeline-model-parallel-size 2"
MANY = 5000
"""Steps of a training that does not come to its end."""
DISTURBED = [
    pytest.param(NOT_NUMBERS, "", id="neither is a number"),
    pytest.param(NOT_NUMBERS, "--clip-grad 0", id="no norm is known"),
    pytest.param(INFINITE_LOSS, "", id="infinite loss, finite gradients"),
]


@pytest.mark.parametrize(("disturbed", "flags"), DISTURBED)
def test_the_frames_of_the_last_step_are_sent(
    disturbed: scope_pb2.ScopePerturbation, flags: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with scoped_job(1, flags, monkeypatch, steps=MANY) as job:
        step = overflow(job, lambda _: None, disturbed)
        _dies(job, r"the loss is (nan|inf) at step")

    assert layers_shown(job, 0, step) == EACH_MICROBATCH_OF[0] + EACH_MICROBATCH_OF[1]
    _assert_told_where(disturbed, step, job)


@pytest.mark.parametrize(("disturbed", "flags"), DISTURBED)
def test_a_stage_that_is_killed_when_another_dies_has_sent_them(
    disturbed: scope_pb2.ScopePerturbation, flags: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first stage does not know the loss, and more is shown of it than goes out at once."""
    note = tmp_path / "killed_in"
    layout = f"{STAGES_2} {flags} --killed-in {note}"
    with scoped_job(2, layout, monkeypatch, steps=MANY, run=run_killed) as job:
        step = overflow(job, lambda step: note.write_text(str(step + 1)), disturbed)
        _dies(job)

    assert [layers_shown(job, rank, step) for rank in job.ranks] == EACH_MICROBATCH_OF
    _assert_told_where(disturbed, step, job)


@pytest.mark.parametrize("stages", [1, 2])
def test_gradients_that_are_no_numbers_are_seen_in_the_step_that_dies_of_them_and_in_the_one_before(
    stages: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The loss of the step that has them is one."""
    spoilt, killed = tmp_path / "spoilt_in", tmp_path / "killed_in"
    layout = f"{STAGES_2 if stages > 1 else ''} --spoilt-in {spoilt} --killed-in {killed}"

    def note(step: int) -> None:
        spoilt.write_text(str(step))
        if stages > 1:
            killed.write_text(str(step + 2))

    with scoped_job(stages, layout, monkeypatch, steps=MANY, run=run_killed) as job:
        step = overflow(job, note, scope_pb2.ScopePerturbation(place="system", kind="scale", coefficient=1))
        _dies(job)

    everywhere = EACH_MICROBATCH_OF if stages > 1 else [EACH_MICROBATCH_OF[0] + EACH_MICROBATCH_OF[1]]
    for number in (step, step + 1):
        assert [layers_shown(job, rank, number) for rank in job.ranks] == everywhere


class Killed(Plugin):
    """The first rank, at the begin of the step that a file names: as torchrun does it to ranks that wait in a step."""

    name: ClassVar[str] = "killed"

    @classmethod
    def add_arguments(cls, parser: argparse.ArgumentParser) -> None:
        parser.add_argument("--killed-in", type=Path)

    @classmethod
    def create(cls, args: argparse.Namespace, context: PluginContext) -> Killed | None:
        return cls(args.killed_in) if context.identity.rank == 0 and args.killed_in else None

    def __init__(self, note: Path) -> None:
        self._note = note

    def step_begin(self, step: int) -> None:
        if _named(self._note, step):
            os.kill(os.getpid(), signal.SIGKILL)


class Spoilt(Plugin):
    """A gradient of the first stage, in the step that a file names."""

    name: ClassVar[str] = "spoilt"

    @classmethod
    def add_arguments(cls, parser: argparse.ArgumentParser) -> None:
        parser.add_argument("--spoilt-in", type=Path)

    @classmethod
    def create(cls, args: argparse.Namespace, context: PluginContext) -> Spoilt | None:
        return cls(args.spoilt_in) if context.identity.rank == 0 and args.spoilt_in else None

    def __init__(self, note: Path) -> None:
        self._note = note
        self._step = 0

    def models(self, chunks: Sequence[torch.nn.Module]) -> None:
        self._parameter: Any = next(chunks[0].parameters())

    def step_begin(self, step: int) -> None:
        self._step = step

    def optimizer(self, step: Callable[[], Any]) -> Callable[[], Any]:
        def of_spoilt() -> Any:
            if _named(self._note, self._step):
                self._parameter.main_grad.fill_(torch.nan)
            return step()

        return of_spoilt


def run_killed(flags: str) -> list[float]:
    """The first rank with a ring that takes next to nothing at once."""
    from megatronapp.trainer.plugins.scan import ScanPlugin
    from megatronapp.trainer.plugins.scope import ScopePlugin, outlet

    if os.environ["RANK"] == "0":
        outlet.AT_ONCE_BYTES = 6_000  # one frame
    return train(flags, plugins=(ScanPlugin, ScopePlugin, Killed, Spoilt)).losses


def _named(note: Path, step: int) -> bool:
    return note.exists() and step == int(note.read_text())


def _dies(job: ScopedJob, match: str = "") -> None:
    with pytest.raises(RankFailedError, match=match):
        job.done()
    job.gateway.wait(lambda: job.gateway.left == set(job.ranks), 20)


def _assert_told_where(disturbed: scope_pb2.ScopePerturbation, step: int, job: ScopedJob) -> None:
    places = {(alert.site, alert.layer, alert.step) for alert in told_of_nonfinite(job)}
    assert places == ({("resid_post", 2, step)} if disturbed is NOT_NUMBERS else set())
