"""`megatronapp demo`: its flags, and the plan that they make."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Annotated

import typer

from megatronapp.cli.extras import needs
from megatronapp.cli.folders import demo_folder, examples_folder
from megatronapp.core.errors import UsageError
from megatronapp.core.scenario import Fault, FaultKind, Scenario


def demo(
    port: Annotated[int, typer.Option(min=0, max=65535, help="port of the page; 0: any free port")] = 8080,
    slow_rank: Annotated[int, typer.Option(help="the rank to slow, 0 to 3")] = 2,
    effect: Annotated[float, typer.Option(help="how slow: 1.3 is 30 % slower")] = 1.3,
    from_step: Annotated[int, typer.Option(help="first slow step")] = 41,
    scenario: Annotated[Path | None, typer.Option(help="a fault scenario in place of the three flags above")] = None,
    steps: Annotated[int | None, typer.Option(help="training steps; default: those of the example")] = None,
    folder: Annotated[Path | None, typer.Option(help="where files go; default: the user's data folder")] = None,
    check: Annotated[bool, typer.Option("--check", help="no page; end by itself; print one JSON line")] = False,
) -> None:
    """Train a small GPT on four CPU ranks, slow one of them, and see it found."""
    if steps is not None and steps < 1:
        raise UsageError(f"--steps {steps}: a run has at least one step")
    fault = scenario and Scenario.load(scenario)
    with needs("all"):
        from megatronapp.cli.demo.play import Demo, play
        from megatronapp.core.trainingjob import TrainingJob
    plan = Demo(
        job=TrainingJob.load(examples_folder() / "laptop" / "demo.yaml"),
        scenario=fault or _slow(slow_rank, effect, from_step),
        examples=examples_folder(),
        folder=folder or demo_folder(),
        port=port,
        check=check,
        steps=steps,
    )
    raise typer.Exit(asyncio.run(play(plan)))


def _slow(rank: int, effect: float, from_step: int) -> Scenario:
    if rank not in range(4):
        raise UsageError(f"--slow-rank {rank}: the demo has ranks 0 to 3")
    if not 1 < effect <= 20:
        raise UsageError(f"--effect {effect}: take a ratio above 1, such as 1.3 for 30 % slower")
    if from_step < 1:
        raise UsageError(f"--from-step {from_step}: steps count from 1")
    fault = Fault(kind=FaultKind.SLOW_COMPUTE, ranks=(rank,), from_step=from_step, effect_ratio=effect)
    return Scenario(faults=(fault,))
