"""How a job is laid out over its ranks: as a `config.yaml` (TP, PP, world_size) says, or as its communicators show.

Ranks are numbered as Megatron does: tensor, then data, then pipeline parallel
(https://github.com/NVIDIA/Megatron-LM/blob/main/megatron/core/parallel_state.py).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from megatronapp.core.errors import ConfigError, DataError, NotFoundError
from megatronapp.core.trace.limits import MAX_WORLD
from megatronapp.core.yaml_text import load_yaml

MAX_CONFIG_BYTES = 1 << 16
TENSOR, DATA, PIPELINE = "TP", "DP", "PP"
DENSE = 4
"""Where one family of groups alone is seen, it is tensor parallel if it is called so many times as often as any other:
there are four collectives to each layer of a microbatch."""


@dataclass(frozen=True, slots=True)
class Layout:
    tp: int
    dp: int
    pp: int
    source: str
    """Who told it: a file's name, or "communicators"."""

    @property
    def world(self) -> int:
        return self.tp * self.dp * self.pp

    def place(self, rank: int) -> tuple[int, int, int]:
        """Its number in its tensor, its data and its pipeline group."""
        return rank % self.tp, rank // self.tp % self.dp, rank // (self.tp * self.dp)

    def stage(self, rank: int) -> int:
        return rank // (self.tp * self.dp)

    def kind(self, ranks: tuple[int, ...]) -> str:
        """Which dimensions a communicator runs along, such as "TP" or "DP-TP"; "PP" also for a part of the stages."""
        places = [self.place(rank) for rank in ranks]
        varying = [name for axis, name in enumerate((TENSOR, DATA, PIPELINE)) if len({p[axis] for p in places}) > 1]
        return "-".join(varying) or "self"

    def explains(self, ranks: tuple[int, ...]) -> bool:
        """Whether the ranks are a full group along some dimensions, of all stages or of some."""
        places = [self.place(rank) for rank in ranks]
        axes = [{place[axis] for place in places} for axis in range(3)]
        full = len(axes[0]) in (1, self.tp) and len(axes[1]) in (1, self.dp)
        return full and len(set(ranks)) == len(ranks) == len(axes[0]) * len(axes[1]) * len(axes[2])

    def __str__(self) -> str:
        return f"TP {self.tp}, PP {self.pp}, DP {self.dp}"


def read_config(path: Path) -> Layout:
    """Raises NotFoundError, ConfigError."""
    if not path.is_file():
        raise NotFoundError(f"{path}: not found; give the job's config.yaml with TP, PP and world_size")
    if path.stat().st_size > MAX_CONFIG_BYTES:
        raise ConfigError(f"{path}: larger than {MAX_CONFIG_BYTES >> 10} KiB; it holds TP, PP and world_size")
    content = load_yaml(path.read_bytes(), str(path))
    sizes = [content.get(name) for name in ("TP", "PP", "world_size")] if isinstance(content, dict) else [None]
    if not all(isinstance(size, int) and not isinstance(size, bool) and 0 < size <= MAX_WORLD for size in sizes):
        raise ConfigError(f"{path}: must hold TP, PP and world_size, each a whole number from 1 to {MAX_WORLD}")
    tp, pp, world = (int(size) for size in sizes if size is not None)
    if world % (tp * pp):
        raise ConfigError(f"{path}: world_size {world} is no multiple of TP x PP, {tp} x {pp}; correct one of them")
    return Layout(tp, world // (tp * pp), pp, path.name)


@dataclass(frozen=True, slots=True)
class Traffic:
    """What is known of a job's communicators."""

    members: Mapping[str, tuple[int, ...]]
    calls: Mapping[str, int]
    """Collectives of each, of the member that called most."""
    messages: frozenset[str]
    """Those that carry messages."""


def check(layout: Layout, newest_rank: int, traffic: Traffic) -> None:
    """Raises DataError where what was told contradicts the files. newest_rank: the highest that has a file."""
    if newest_rank >= layout.world:
        raise DataError(
            f"{layout.source} says world_size {layout.world}, and there is a file of rank {newest_rank}; give the "
            "config.yaml of this job"
        )
    strange = next((ranks for _, ranks in sorted(traffic.members.items()) if not layout.explains(ranks)), None)
    found = infer(layout.world, traffic) if strange is not None else None
    if strange is not None and found is not None:
        raise DataError(
            f"{layout.source} says {layout}, and ranks {', '.join(map(str, strange[:16]))} have a communicator, as "
            f"with {found}; give the config.yaml of this job, or none: it is then inferred"
        )


def infer(world: int, traffic: Traffic) -> Layout | None:
    """The layout whose groups all communicators are, with no dimension that none of them shows; None where there is
    none, or several."""
    groups = {group: ranks for group, ranks in traffic.members.items() if len(ranks) > 1}
    fitting = [
        layout
        for layout in _layouts(world)
        if all(layout.explains(ranks) for ranks in groups.values()) and _shows(layout, groups, traffic)
    ]
    return fitting[0] if len(fitting) == 1 else None


def _layouts(world: int) -> list[Layout]:
    divisors = [size for size in range(1, world + 1) if world % size == 0]
    sizes = [(tp, pp) for tp in divisors for pp in divisors if world // tp % pp == 0]
    return [Layout(tp, world // tp // pp, pp, "communicators") for tp, pp in sizes]


def _shows(layout: Layout, groups: Mapping[str, tuple[int, ...]], traffic: Traffic) -> bool:
    """Whether each dimension is seen alone in some communicator, stages and nobody else pass messages, and what is
    called so densely as tensor-parallel groups is one."""
    kinds = {group: layout.kind(ranks) for group, ranks in groups.items()}
    sizes = {TENSOR: layout.tp, DATA: layout.dp, PIPELINE: layout.pp}
    if any(size > 1 and kind not in kinds.values() for kind, size in sizes.items()):
        return False
    if any(
        kinds[group] == PIPELINE and traffic.calls.get(group, 0) and not _shares_stages(layout, ranks)
        for group, ranks in groups.items()
    ):
        return False
    passing = {kinds[group] for group in traffic.messages & kinds.keys()}
    if passing != ({PIPELINE} if layout.pp > 1 else set()):
        return False
    if (layout.tp > 1) == (layout.dp > 1):
        return True
    along = TENSOR if layout.tp > 1 else DATA
    calls = sorted((traffic.calls.get(group, 0), kinds[group] == along) for group in groups)
    most, of_family = calls[-1]
    others = [count for count, _ in calls if count * DENSE <= most and count]
    return (of_family and bool(others)) == (along == TENSOR)


def _shares_stages(layout: Layout, ranks: tuple[int, ...]) -> bool:
    """Whether collectives along stages are likely: of all, or of the first and the last, which share embeddings."""
    stages = {layout.stage(rank) for rank in ranks}
    return len(stages) == layout.pp or stages == {0, layout.pp - 1}
