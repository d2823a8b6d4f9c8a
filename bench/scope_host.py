"""What watching a site costs the training thread, but for the device's work: tensors are so small that what is left is
Python and PyTorch's dispatch. Counting patterns takes a processor long, however few values there are: `counting_us` is
taken off. Times are the training thread's own processor time, which other work on the machine changes little.

    python -m bench.scope_host                    # microseconds, the least of several rounds
    python -m bench.scope_host --threads 1 --rounds 20

`site`: one hook that fires, with the reduction of its value. `frame`: what a step's end takes for it: to finish it, to
pack it, to hand it to the ring; of statistics also to make them of counts, which is the device's work. `operations`:
what torch is asked for at a site that makes or writes a tensor, on a GPU a kernel or a fill each; views are free.
`copies` of these may bring something from the host, also a number that is made a tensor, which waits for the device
there. `border_operations` and `border_copies` are those of a
step's end, for all sites.
Goal: 30 µs a site.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections import Counter
from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from bench.scope_overhead import HEATMAPS, STATISTICS
from megatronapp.core.scope.operations import Stats
from megatronapp.core.scope.sites import Coordinates, Model, standard_sites
from megatronapp.trainer.plugins.channel import AgentChannel
from megatronapp.trainer.plugins.scope import patterns
from megatronapp.trainer.plugins.scope.position import Position
from megatronapp.trainer.plugins.scope.shards import Shard
from megatronapp.trainer.plugins.scope.taps import Demand, Taps
from megatronapp.trainer.plugins.scope.viewer import Viewer

LAYERS, HEADS, CHANNELS, TOKENS = 16, 4, 16, 128
MODEL = Model(
    layers=LAYERS,
    hidden=HEADS * CHANNELS,
    heads=HEADS,
    head_channels=CHANNELS,
    mlp_channels=4 * HEADS * CHANNELS,
    vocabulary=64,
    query_groups=HEADS,
    batch=1,
    tokens=TOKENS,
)
STEPS = 20
"""Of a round."""
FREE = {"view", "_unsafe_view", "expand", "permute", "slice", "select", "squeeze", "unsqueeze", "detach", "alias"}
FREE |= {
    "transpose",
    "as_strided",
    "empty",
    "new_empty",
    "unbind",
    "reshape",
    "split",
    "lift_fresh",
    "_reshape_alias",
    "promote_types",
}


class Pass(torch.nn.Module):
    def forward(self, *values: torch.Tensor) -> torch.Tensor:
        return values[0]


class Attention(Pass):
    def __init__(self) -> None:
        super().__init__()
        self.core_attention = Pass()


class Layer(Pass):
    """Calls what the demands look at, and computes nothing."""

    def __init__(self, number: int, config: Any) -> None:
        super().__init__()
        self.layer_number, self.config = number, config
        self.self_attention, self.mlp = Attention(), Pass()

    def forward(self, *values: torch.Tensor) -> torch.Tensor:
        hidden, heads = values
        self.self_attention.core_attention(heads, heads, heads)
        self.mlp(hidden)
        return hidden


class Chunk(torch.nn.Module):
    post_process = False

    def __init__(self) -> None:
        super().__init__()
        config = SimpleNamespace(gated_linear_unit=False)
        layers = torch.nn.ModuleList(Layer(number, config) for number in range(1, LAYERS + 1))
        self.decoder = torch.nn.Module()
        self.decoder.layers = layers

    def forward(self, hidden: torch.Tensor, heads: torch.Tensor) -> torch.Tensor:
        for layer in self.decoder.layers:  # type: ignore[union-attr]
            layer(hidden, heads)
        return hidden


class Ring:
    """Takes frames, as a recorder's does, and keeps none."""

    def write_frame(self, descriptor: Any, payload: Any) -> None:
        pass


class Subject:
    def __init__(self, expressions: Sequence[str]) -> None:
        at = Coordinates(layers=tuple(range(LAYERS)))
        shard = Shard(MODEL, at, {site.name: site for site in standard_sites(MODEL, at)})
        self.chunk, self.position = Chunk(), Position()
        self.taps = Taps([self.chunk], shard, self.position)
        line: Any = Ring()
        self.viewer = Viewer(self.taps.spots, shard, AgentChannel(line=line), lambda _: None, 0)
        taps = [{"id": number, "expression": text.format(middle=8)} for number, text in enumerate(expressions, 1)]
        self.viewer.show({"taps": taps}, 0.0)
        demands = [(spot, Demand([], *self.viewer.wanted(spot))) for spot in self.taps.spots]
        self.sites = sum(len(demand.readers) for _, demand in demands)
        self.taps.set(demands)
        self.hidden = torch.randn(TOKENS, 1, HEADS * CHANNELS).bfloat16()
        self.heads = torch.randn(TOKENS, 1, HEADS, CHANNELS).bfloat16()
        self._step = 0

    def forward(self) -> None:
        self.chunk(self.hidden, self.heads)

    def begin(self) -> None:
        self._step += 1
        self.position.step, self.position.active = self._step, self.viewer.step_begin(self._step)

    def end(self) -> None:
        self.position.active = False
        self.viewer.step_end()


class Operations(TorchDispatchMode):  # type: ignore[no-untyped-call]
    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.counts: Counter[str] = Counter()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = func.overloadpacket.__name__
        if name not in FREE:
            self.counts[name] += 1
        return func(*args, **(kwargs or {}))


def measure(name: str, expressions: Sequence[str], rounds: int) -> dict[str, Any]:
    subject, nothing = Subject(expressions), Subject(())
    inside = min(_forward(subject) for _ in range(rounds)) - min(_forward(nothing) for _ in range(rounds))
    counting = min(_counting(subject) for _ in range(rounds)) if "stats" in expressions[0] else 0.0
    frame = min(_border(subject) for _ in range(rounds))
    operations, border = Operations(), Operations()
    subject.begin()
    with operations:
        subject.forward()
    with border:
        subject.end()
    return {
        "demand": name,
        "sites": subject.sites,
        "site_us": round((inside / subject.sites - counting) * 1e6, 1),
        "counting_us": round(counting * 1e6, 1),
        "frame_us": round(frame / subject.sites * 1e6, 1),
        "operations": round(sum(operations.counts.values()) / subject.sites, 2),
        "copies": round(copies(operations) / subject.sites, 1),
        "border_operations": sum(border.counts.values()),
        "border_copies": copies(border),
    }


def copies(operations: Operations) -> int:
    return operations.counts["_to_copy"] + operations.counts["scalar_tensor"]


def _forward(subject: Subject) -> float:
    """Seconds of a step's forward pass; what it has gathered is left."""
    spent = 0.0
    for _ in range(STEPS):
        subject.begin()
        spent += _timed(subject.forward)
        subject.viewer.queue.forget()
    return spent / STEPS


def _counting(subject: Subject) -> float:
    wanted = patterns.Wanted(Stats(("mean",)), partial=False)
    return _timed(lambda: [patterns.counted(subject.hidden, wanted) for _ in range(STEPS)]) / STEPS


def _border(subject: Subject) -> float:
    """Seconds of what comes before and after it."""
    spent = 0.0
    for _ in range(STEPS):
        before = _timed(subject.begin)
        subject.forward()
        spent += before + _timed(subject.end)
    return spent / STEPS


def _timed(call: Callable[[], object]) -> float:
    begin = time.thread_time()
    call()
    return time.thread_time() - begin


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m bench.scope_host", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--threads", type=int, default=1)
    options = parser.parse_args(argv)
    torch.set_num_threads(options.threads)
    for name, expressions in (("statistics", STATISTICS), ("heatmaps", HEATMAPS)):
        print(json.dumps(measure(name, expressions, options.rounds)), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
