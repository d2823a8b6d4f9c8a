"""What Generate's first view costs the thread that generates: tensors lie on the host and are as in the preset `1b`,
whose model is not computed, so that what is left is Python, PyTorch's dispatch and the copying of bytes.

    python -m bench.generation_host                      # microseconds of processor time, the least of several rounds
    python -m bench.generation_host --commit 90e20403    # in turns with that earlier version, which comes out of git

Of the pass over the prompts, and of a token after it: `pass_us` is what hooks take and the begin of a pass, `frames_us`
its end, where results are finished, packed and handed to the ring, and `operations` what torch is asked for that makes
or writes a tensor, on a GPU a kernel or a fill each. All without what the same takes while nobody watches. A model that
runs between takes the processor's caches: what it costs there, bench.generation_overhead says.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch

from bench import _first_look
from bench.scope_host import Operations, Pass, Ring
from megatronapp.core.scope.sites import Coordinates, Model, standard_sites
from megatronapp.trainer.plugins.channel import AgentChannel
from megatronapp.trainer.plugins.scope.position import Position
from megatronapp.trainer.plugins.scope.shards import Shard
from megatronapp.trainer.plugins.scope.taps import Demand, Taps
from megatronapp.trainer.plugins.scope.viewer import Viewer

ROOT = Path(__file__).resolve().parents[1]
LAYERS, HEADS, GROUPS, HIDDEN = 24, 16, 4, 2048
PROMPT_TOKENS, NEW_TOKENS, MAX_POSITIONS = 120, 30, 2048
REQUEST = "request"
TURNS = 3
MODEL = Model(
    layers=LAYERS,
    hidden=HIDDEN,
    heads=HEADS,
    head_channels=HIDDEN // HEADS,
    mlp_channels=5376,
    vocabulary=32000,
    query_groups=GROUPS,
    batch=1,
    tokens=MAX_POSITIONS,
)


class Given(torch.nn.Module):
    """Gives what it is given, as the model's own module does."""

    def forward(self, value: Any) -> Any:
        return value


class Layer(torch.nn.Module):
    def __init__(self, number: int) -> None:
        super().__init__()
        self.layer_number, self.config = number, SimpleNamespace(gated_linear_unit=True)
        self.self_attention, self.self_attention.core_attention = Pass(), Pass()
        self.self_attention.core_attention.scale_mask_softmax = Given()

    def forward(self, hidden: torch.Tensor, probabilities: torch.Tensor) -> tuple[torch.Tensor, None]:
        attention: Any = self.self_attention
        attention.core_attention.scale_mask_softmax(probabilities)
        return hidden, None


class Chunk(torch.nn.Module):
    post_process = False

    def __init__(self) -> None:
        super().__init__()
        self.decoder = torch.nn.Module()
        self.decoder.layers = torch.nn.ModuleList(Layer(number) for number in range(1, LAYERS + 1))

    def forward(self, hidden: torch.Tensor, probabilities: torch.Tensor) -> torch.Tensor:
        for layer in self.decoder.layers:  # type: ignore[union-attr]
            layer(hidden, probabilities)
        return hidden


class Subject:
    """A generation's passes without a model; `shown`: by what the first view asks for."""

    def __init__(self, *, shown: bool) -> None:
        at = Coordinates(layers=tuple(range(LAYERS)))
        shard = Shard(MODEL, at, {site.name: site for site in standard_sites(MODEL, at, "bf16")})
        self.chunk, self.position = Chunk(), Position()
        taps = Taps([self.chunk], shard, self.position)
        line: Any = Ring()
        self.viewer = Viewer(taps.spots, shard, AgentChannel(line=line), lambda _: None, 0)
        sites = self.viewer.described(trains=False, generates=True)["sites"]
        self.viewer.show({"taps": _first_look.taps(sites, MAX_POSITIONS, REQUEST) if shown else []}, 0.0)
        taps.set([(spot, Demand([], *self.viewer.wanted(spot))) for spot in taps.spots])

    def begin_and_pass(self, start: int, end: int, hidden: torch.Tensor, probabilities: torch.Tensor) -> None:
        """As the plug-in has it."""
        self.position.generate(REQUEST, start, end)
        self.position.active = self.viewer.pass_begin(REQUEST, self.position.step)
        self.chunk(hidden, probabilities)

    def end(self) -> None:
        self.position.train()
        self.viewer.step_end()


def values(start: int, end: int) -> tuple[torch.Tensor, torch.Tensor]:
    draws = torch.Generator().manual_seed(end)
    hidden = torch.randn(end - start, _first_look.PROMPTS, HIDDEN, generator=draws).bfloat16()
    scores = torch.randn(_first_look.PROMPTS, HEADS, end - start, end, generator=draws)
    return hidden, scores.softmax(-1).bfloat16()


def measure(passes: Sequence[tuple[int, int]], rounds: int) -> dict[str, Any]:
    """What is added to each of these passes."""
    given = [(*ends, *values(*ends)) for ends in passes]
    best = [
        [min(parts) for parts in zip(*(_spent(shown, given) for _ in range(rounds)), strict=True)]
        for shown in (True, False)
    ]
    inside, frames = ((more - less) / len(passes) * 1e6 for more, less in zip(*best, strict=True))
    operations = Operations()
    subject = Subject(shown=True)
    with operations:
        _run(subject, given)
    return {
        "pass_us": round(inside, 1),
        "frames_us": round(frames, 1),
        "operations": round(sum(operations.counts.values()) / len(passes), 2),
    }


def _spent(shown: bool, given: Sequence[Any]) -> tuple[float, float]:
    """Processor seconds of all passes, and of what follows them."""
    return _run(Subject(shown=shown), given)


def _run(subject: Subject, given: Sequence[Any]) -> tuple[float, float]:
    inside = frames = 0.0
    for each in given:
        begin = time.thread_time()
        subject.begin_and_pass(*each)
        middle = time.thread_time()
        subject.end()
        inside += middle - begin
        frames += time.thread_time() - middle
    return inside, frames


Report = dict[str, dict[str, float]]


def measured(rounds: int) -> Report:
    """By this process's version."""
    warnings.filterwarnings("ignore")
    torch.set_num_threads(1)
    prompts = [(0, PROMPT_TOKENS)]
    tokens = [(end - 1, end) for end in range(PROMPT_TOKENS + 1, PROMPT_TOKENS + NEW_TOKENS + 1)]
    with torch.no_grad():
        return {"prompts": measure(prompts, rounds), "token": measure(tokens, rounds)}


def compared(commit: str, rounds: int) -> dict[str, Report]:
    """Each version in processes of its own, in turns; of each figure the least."""
    found: dict[str, list[Report]] = {commit: [], "now": []}
    with tempfile.TemporaryDirectory() as name:
        archive = subprocess.run(["git", "archive", commit], cwd=ROOT, stdout=subprocess.PIPE, check=True)
        subprocess.run(["tar", "x", "-C", name], input=archive.stdout, check=True)
        for _ in range(TURNS):
            for version, tree in ((commit, Path(name)), ("now", ROOT)):
                found[version].append(_measured_by(tree, rounds))
    return {version: _least(reports) for version, reports in found.items()}


def _measured_by(tree: Path, rounds: int) -> Report:
    """This file, with the packages of a version."""
    roots = [tree, *(each.parent for part in ("libs", "services") for each in tree.glob(f"{part}/*/megatronapp"))]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(map(str, roots)), "PYTHONDONTWRITEBYTECODE": "1"}
    call = [sys.executable, "-W", "ignore", __file__, "--rounds", str(rounds)]
    run = subprocess.run(call, cwd=tree, env=environment, stdout=subprocess.PIPE, check=True)
    report: Report = json.loads(run.stdout)["now"]
    return report


def _least(reports: Sequence[Report]) -> Report:
    return {
        part: {figure: min(report[part][figure] for report in reports) for figure in figures}
        for part, figures in reports[0].items()
    }


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m bench.generation_host",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--commit", help="an earlier version to compare with")
    options = parser.parse_args(argv)
    report = compared(options.commit, options.rounds) if options.commit else {"now": measured(options.rounds)}
    print(json.dumps(report, indent=2), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
