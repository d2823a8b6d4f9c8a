"""Runs the measurements and prints their tables."""

from __future__ import annotations

import argparse
import json
import math
from collections.abc import Callable, Mapping, Sequence

import torch

from bench.transport import cpu, training

Medians = Mapping[tuple[str, str, str, int], tuple[float, int]]
MISSING = "-"
NAME_WIDTH = 20
SHAPES = ("pairs", "ring", "all")
"""Of many_gpus, which is imported where there are GPUs alone."""


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.transport", description=__doc__)
    parser.add_argument("--seconds", type=float, default=60, help="time for the CPU tables")
    parser.add_argument("--samples", type=int, default=7, help="samples of each cell")
    parser.add_argument("--only", choices=("cpu", "gpu", "many-gpus", "bare", "training"))
    parser.add_argument("--shapes", nargs="+", choices=SHAPES, default=SHAPES, help="among four GPUs or more (all)")
    parser.add_argument("--json", action="store_true", help="also print every median as JSON")
    options = parser.parse_args()
    if options.only in (None, "cpu"):
        medians = cpu.measure(options.samples, options.seconds)
        for distance in ("near", "far"):
            print_distance(medians, distance)
        if options.json:
            print(json.dumps([[*key, *value] for key, value in sorted(medians.items())]))
    if options.only in (None, "gpu"):
        report_gpu()
    if options.only in (None, "gpu", "many-gpus"):
        report_many_gpus(options.shapes)
    if options.only in (None, "bare"):
        report_beside_bare()
    if options.only in (None, "training"):
        training.report()
    return 0


def report_gpu() -> None:
    if torch.cuda.device_count() < 2:
        print("\nGPU tensors: not measured, as there are fewer than two GPUs here")
        return
    from bench.transport import gpu

    gpu.report()


def report_many_gpus(shapes: Sequence[str]) -> None:
    from bench.transport import many_gpus

    if torch.cuda.device_count() < many_gpus.MIN_GPUS:
        print("\nmany GPUs at once: not measured, as there are fewer than four GPUs here")
    else:
        many_gpus.report(torch.cuda.device_count(), shapes)


def report_beside_bare() -> None:
    if torch.cuda.device_count() < 1:
        print("\nGPU tensors beside a bare exchange: not measured, as there is no GPU here")
        return
    from bench.transport import bare

    bare.report()


def print_distance(medians: Medians, distance: str) -> None:
    if not any(key[2] == distance for key in medians):
        print(f"\ncores {distance}: not measured, as they never were")
        return
    print(f"\ncores {distance}, GB/s one way")
    table(medians, "one way", distance, lambda seconds, size: size / seconds / 1e9)
    print(f"\ncores {distance}, half round trip in µs")
    table(medians, "half round trip", distance, lambda seconds, _: seconds * 1e6)
    print_ratios(medians, distance)


def table(medians: Medians, measure: str, distance: str, value: Callable[[float, int], float]) -> None:
    names = list(dict.fromkeys(key[1] for key in medians if key[0] == measure))
    print(f"{'':{NAME_WIDTH}}" + "".join(f"{label(size):>10}" for size in cpu.SIZES))
    for name in names:
        cells = (medians.get((measure, name, distance, size)) for size in cpu.SIZES)
        texts = (
            MISSING if cell is None else f"{value(cell[0], size):.2f}"
            for cell, size in zip(cells, cpu.SIZES, strict=True)
        )
        print(f"{name:{NAME_WIDTH}}" + "".join(f"{text:>10}" for text in texts))


def print_ratios(medians: Medians, distance: str) -> None:
    def speed(name: str, size: int) -> float | None:
        cell = medians.get(("one way", name, distance, size))
        return cell and size / cell[0]

    def ratios(lane: str, *others: str) -> list[float | None]:
        found: list[float | None] = []
        for size in cpu.SIZES:
            mine, best = speed(lane, size), [s for other in others if (s := speed(other, size))]
            found.append(mine / max(best) if mine and len(best) == len(others) else None)
        return found

    first = " first" if any(key[1] == "shm first" for key in medians) else ""
    rows = {
        f"shm{first} / best ring": ratios(f"shm{first}", "ring cached", "ring streaming"),
        f"watched / shm{first}": ratios(f"shm watched{first}", f"shm{first}"),
        f"unaided / shm{first}": ratios(f"shm unaided{first}", f"shm{first}"),
        "shm / gloo": ratios("shm", "gloo"),
        "tcp / gloo": ratios("tcp", "gloo"),
    }
    print(f"\ncores {distance}, ratios")
    for name, row in rows.items():
        if not any(row):
            continue
        print(f"{name:{NAME_WIDTH}}" + "".join(f"{MISSING if r is None else f'{r:.2f}':>10}" for r in row))
    for name in ("shm / gloo", "tcp / gloo"):
        large = [r for r, size in zip(rows[name], cpu.SIZES, strict=True) if r is not None and size >= 1 << 20]
        if large:
            mean = math.exp(sum(map(math.log, large)) / len(large))
            print(f"{name}, geometric mean of {len(large)} sizes from 1 MiB: {mean:.2f}, least {min(large):.2f}")


def label(size: int) -> str:
    return f"{size >> 20} MiB" if size >= 1 << 20 else f"{size >> 10} KiB"
