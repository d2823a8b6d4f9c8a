"""The demo itself: platform and training run side by side, and somebody who watches both."""

from __future__ import annotations

import asyncio
import json
import shutil
import signal
import sys
import time
import uuid
from collections import deque
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

from rich.console import Console
from rich.live import Live

from megatronapp.cli.demo import corpus, view
from megatronapp.cli.demo.state import DemoState
from megatronapp.cli.folders import demo_folder
from megatronapp.cli.local_stack import LocalStack, Options, local_stack
from megatronapp.cli.serve import hints, served_job
from megatronapp.core.bus import Topic
from megatronapp.core.findings import Finding
from megatronapp.core.scenario import Scenario
from megatronapp.core.trainingjob import TrainingJob
from megatronapp.core.trainingjob.spec import flag_values
from megatronapp.trainer.jobs import JobEvent, run_job
from megatronapp.v1 import findings_pb2, trace_pb2

SETTLE_STEPS = 10
"""After the first page the check waits so many steps, so that a wrong second verdict would be seen."""
SETTLE_SECONDS = 10.0
"""Or so long without a step, as of a job that hangs."""
GIVE_UP_STEPS = 120
"""The check fails when nothing pages within so many steps of the fault."""
GIVE_UP_SECONDS = 60.0
"""And when no step ends any more for so long."""
REFRESH_SECONDS = 0.25
DRAIN_SECONDS = 1.0
"""What the ranks said last comes so long after their end."""
WARM_UP_STEPS = 10
"""Of the learning rate, as in the example."""


@dataclass(frozen=True)
class Demo:
    job: TrainingJob
    scenario: Scenario
    examples: Path
    folder: Path
    port: int = 8080
    check: bool = False
    steps: int | None = None


@dataclass
class _Run:
    """What goes on while the demo plays."""

    state: DemoState
    stop: asyncio.Event = field(default_factory=asyncio.Event)
    log: deque[str] = field(default_factory=lambda: deque(maxlen=40))
    """The last lines of the ranks' output, shown when the run fails."""

    def on_event(self, event: JobEvent) -> None:
        self.log.append(event.text)


async def play(demo: Demo) -> int:
    """Run the demo; returns the exit code."""
    run = _Run(DemoState(demo.scenario))
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, run.stop.set)
    console = Console(stderr=demo.check)
    console.print("preparing the text …", style="dim")
    data = await asyncio.to_thread(corpus.prepare, demo.examples, demo.folder / "data")
    job = _job(demo)
    options = Options(demo.folder, page_port=None if demo.check else demo.port)
    async with local_stack(options) as running, _listening(running, run.state):
        _print(console, [f"page  {running.link}"] if running.page else [])
        _print(console, view.preview(f"local/{job.metadata.name}", job.metadata.uid, demo.scenario, steps_of(job)))
        training = asyncio.create_task(_train(demo.folder / "run", job, running, data, run))
        await (_check(run, training) if demo.check else _show(console, run, training))
        asked = run.stop.is_set()
        outcome = await _end(run, training)
        failed = outcome is view.Outcome.FAILED
        if failed:
            print("\n".join(run.log), file=sys.stderr)
        if not demo.check:
            _print(console, view.ending(run.state, outcome))
            if not asked:
                elsewhere = f" --folder {demo.folder}" if demo.folder != demo_folder() else ""
                how = f"The page stays at {running.page} (to sign in: megatronapp token{elsewhere})."
                asked_how = [] if failed else hints(running.page, demo.folder)
                _print(console, [how, *asked_how, "Ctrl-C ends the demo."])
                await (run.stop.wait() if failed else _serve(console, demo, running, run))
    if demo.check:
        verdict = run.state.verdict()
        print(json.dumps(verdict), flush=True)
        return 0 if verdict["found"] == verdict["injected"] and not failed else 1
    return 1 if failed else 0


async def _train(work: Path, job: TrainingJob, running: LocalStack, data: Path, run: _Run) -> view.Outcome:
    """The training run to its end."""
    await asyncio.to_thread(shutil.rmtree, work, ignore_errors=True)  # an earlier demo's checkpoint would be resumed
    result = await run_job(
        job,
        work_dir=work,
        collector_address=running.collector_address,
        gateway_address=running.gateway_address,
        token_file=running.token_file,
        storage={"data": data},
        on_event=run.on_event,
        stop=run.stop,
    )
    return view.Outcome.of(result.exit_code, stopped=result.stopped)


async def _serve(console: Console, demo: Demo, running: LocalStack, run: _Run) -> None:
    """The model that was trained answers until the demo is ended."""
    result = await run_job(
        served_job("demo-served", demo.folder / "run" / "checkpoints"),
        work_dir=demo.folder / "served",
        collector_address=running.collector_address,
        gateway_address=running.gateway_address,
        token_file=running.token_file,
        on_event=run.on_event,
        stop=run.stop,
    )
    if not run.stop.is_set():
        _print(console, [f"The model is served no more, exit code {result.exit_code}:", *run.log])
        await run.stop.wait()


def _job(demo: Demo) -> TrainingJob:
    faults = demo.job.spec.plugins.faults.model_copy(update={"scenario": demo.scenario})
    plugins = demo.job.spec.plugins.model_copy(update={"faults": faults})
    args = [*demo.job.spec.args, *(shortened(demo.steps) if demo.steps else [])]
    spec = demo.job.spec.model_copy(update={"plugins": plugins, "args": args, "termination_grace_period_seconds": 15})
    named = demo.job.metadata.model_copy(update={"uid": uuid.uuid4().hex})
    return demo.job.model_copy(update={"spec": spec, "metadata": named})


def steps_of(job: TrainingJob) -> int:
    """How many steps the job's flags ask for; 0: they don't say."""
    return int(flag_values(job.spec.args).get("--train-iters", 0))


def shortened(steps: int) -> list[str]:
    """Flags of a run of so many steps; the warm-up must end before it does."""
    return [f"--train-iters={steps}", f"--lr-warmup-iters={min(WARM_UP_STEPS, steps - 1)}"]


@asynccontextmanager
async def _listening(running: LocalStack, state: DemoState) -> AsyncIterator[None]:
    """Keep the story up to date from the bus."""

    async def steps() -> None:
        async for message in running.bus.subscribe(Topic.STEPS, group="demo", consumer="demo"):
            state.on_message(trace_pb2.RankMessage.FromString(message.value))
            await running.bus.ack(message, group="demo")

    async def findings() -> None:
        async for message in running.bus.subscribe(Topic.FINDINGS, group="demo", consumer="demo"):
            state.find(Finding.from_proto(findings_pb2.Finding.FromString(message.value)))
            await running.bus.ack(message, group="demo")

    tasks = [asyncio.create_task(steps()), asyncio.create_task(findings())]
    try:
        yield
    finally:
        for task in tasks:
            task.cancel()


def _print(console: Console, lines: Iterable[str]) -> None:
    for line in lines:
        console.print(line, soft_wrap=True, highlight=False)


async def _show(console: Console, run: _Run, training: asyncio.Task[view.Outcome]) -> None:
    """Progress and findings until training ends: a live screen on a terminal, lines elsewhere."""
    if console.is_terminal:
        with Live(console=console, auto_refresh=False) as live:
            while not _over(run, training):
                live.update(view.render(run.state), refresh=True)
                await asyncio.sleep(REFRESH_SECONDS)
            live.update(view.render(run.state), refresh=True)
        return
    printed: dict[str, str] = {}
    shown = 0
    while not _over(run, training):
        if run.state.step >= shown + 10:
            shown = run.state.step
            console.print(f"step {shown}/{run.state.total_steps}")
        for finding in changed(run.state, printed):
            console.print(view.line(finding), soft_wrap=True)
        await asyncio.sleep(REFRESH_SECONDS)


def changed(state: DemoState, printed: dict[str, str]) -> list[Finding]:
    """Findings that page, or have paged, and stand elsewhere than was printed; figures alone are no change."""
    changed = [f for f in map(state.findings.__getitem__, state.paged) if printed.get(f.id) != view.word(f)]
    printed.update({finding.id: view.word(finding) for finding in changed})
    return changed


async def _check(run: _Run, training: asyncio.Task[view.Outcome]) -> None:
    """Wait until the verdict has settled, or it is clear that none will come; one line of progress each 10 steps."""
    paged_at: int | None = None
    last, moved, state = 0, time.monotonic(), run.state
    while not _over(run, training):
        await asyncio.sleep(REFRESH_SECONDS)
        if state.step // 10 > last // 10:
            print(f"step {state.step}/{state.total_steps}", file=sys.stderr, flush=True)
        if state.step > last:
            last, moved = state.step, time.monotonic()
        if state.found and paged_at is None:
            paged_at = state.step
            print(*map(view.line, state.findings.values()), sep="\n", file=sys.stderr, flush=True)
        stands_still = time.monotonic() - moved > (SETTLE_SECONDS if paged_at is not None else GIVE_UP_SECONDS)
        settled = paged_at is not None and state.step >= paged_at + SETTLE_STEPS
        if settled or stands_still or state.step >= state.from_step + GIVE_UP_STEPS:
            return


def _over(run: _Run, training: asyncio.Task[view.Outcome]) -> bool:
    return training.done() or run.stop.is_set()


async def _end(run: _Run, training: asyncio.Task[view.Outcome]) -> view.Outcome:
    """Let the ranks save and end, if they have not."""
    if training.done():
        await asyncio.sleep(DRAIN_SECONDS)
    else:
        run.stop.set()
    return await training
