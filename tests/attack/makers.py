"""How a hostile file is made of a good one."""

from __future__ import annotations

import random
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import yaml

from tests.attack.inputs import as_json, damaged, mutated

Make = Callable[[random.Random, Path], None]
"""Write a hostile input into a folder."""


def of_bytes(name: str, good: bytes) -> Make:
    return lambda chance, place: write(place / name, damaged(chance, good) if chance.random() < 0.95 else good)


def of_json(name: str, good: Any) -> Make:
    def make(chance: random.Random, place: Path) -> None:
        text = as_json(mutated(chance, good, chance.choice((0.001, 0.005, 0.02, 0.1, 0.5))))
        kind = chance.random()
        if kind < 0.15:
            text = damaged(chance, text)
        elif kind < 0.19:
            text = chance.choice((b"[" * 100_000, b'{"a":' * 100_000, b"9" * 5_000, b"1e400", b"\xff\xfe", b""))
        write(place / name, text)

    return make


YAML_BOMBS = (
    b"a: &a0 [x, x]\n" + b"".join(b"a%d: &a%d [%s]\n" % (n, n, b"*a%d, " % (n - 1) * 10) for n in range(1, 30)),
    b"[" * 20_000,
    b"{a: " * 20_000,
    b"kind: &a [*a]",
    b"kind: " + b"9" * 5_000,
    b"kind: \xff\xfe",
    b"kind: 2026-13-45",
    b"- &a {<<: *a}",
    b"!!python/object/apply:os.system [ls]",
    b"? [a]\n: b",
)  # fmt: skip


def of_yaml(name: str, good: bytes) -> Make:
    documents = list(yaml.safe_load_all(good))
    lines = good.splitlines(keepends=True)

    def make(chance: random.Random, place: Path) -> None:
        kind = chance.random()
        if kind < 0.4:
            text = damaged(chance, good)
        elif kind < 0.8:
            text = b"---\n".join(
                as_json(mutated(chance, each, chance.choice((0.02, 0.2)))) + b"\n" for each in documents
            )
        elif kind < 0.9:
            text = b"".join(chance.choices(lines, k=len(lines)))
        else:
            text = chance.choice(YAML_BOMBS)
        write(place / name, text)

    return make


def of_folder(good: Path, change: Callable[[random.Random, Path], None]) -> Make:
    """A copy of a good folder, of which some files are changed."""

    def make(chance: random.Random, place: Path) -> None:
        shutil.copytree(good, place, dirs_exist_ok=True)
        files = sorted(path for path in place.rglob("*") if path.is_file())
        for path in chance.sample(files, chance.randint(1, min(2, len(files)))):
            change(chance, path)

    return make


def write(path: Path, data: bytes) -> None:
    path.write_bytes(data)


def damage(chance: random.Random, path: Path) -> None:
    path.write_bytes(damaged(chance, path.read_bytes()))
