"""What a rank needs of ours, as a folder: the training environment has torch and numpy, and need not have us installed.

    FOLDER/start     goes onto PYTHONPATH; its sitecustomize finds the other two
    FOLDER/rank      the packages that a rank imports, before any that the environment has: they are the agent's version
    FOLDER/native    the native recorder, behind the environment's own, which is built for its Python

`python -m megatronapp.trainer.attach.light FOLDER` makes a copy, for a volume. Standard library alone.
"""

from __future__ import annotations

import argparse
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path

START_FOLDER = Path(__file__).parent / "start"
RANK = ("megatronapp.core", "megatronapp.trainer", "megatronapp.attach")
NATIVE = ("megatronapp.scan",)

Place = Callable[[Path, Path], object]
"""place(source, target): a folder or a file."""


@contextmanager
def linked() -> Iterator[Path]:
    """The folder for PYTHONPATH, while the block runs; the installation's own where no temporary one can be made."""
    try:
        folder = Path(tempfile.mkdtemp(prefix="megatronapp-attach-"))
    except OSError:
        yield START_FOLDER
        return
    try:
        yield lay_out(folder, os.symlink)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def lay_out(folder: Path, place: Place) -> Path:
    """Fill the folder. Returns the one for PYTHONPATH. Raises OSError."""
    for part, modules in (("rank", RANK), ("native", NATIVE)):
        for module in modules:
            source = _source(module)
            if source is not None:
                target = folder / part / "megatronapp" / source.name
                target.parent.mkdir(parents=True, exist_ok=True)
                place(source, target)
    place(START_FOLDER, folder / "start")
    return folder / "start"


def _source(module: str) -> Path | None:
    """The folder of a package, the file of a module; None of one that is not installed."""
    spec = find_spec(module)
    if spec is None:
        return None
    if spec.submodule_search_locations:
        return Path(next(iter(spec.submodule_search_locations)))
    return Path(spec.origin) if spec.origin else None


def _copy(source: Path, target: Path) -> None:
    if source.is_dir():
        shutil.copytree(source, target, dirs_exist_ok=True, ignore=shutil.ignore_patterns("__pycache__"))
    else:
        shutil.copy(source, target)


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m megatronapp.trainer.attach.light", description="What a rank needs of ours, as a folder."
    )
    parser.add_argument("folder", type=Path, help="where to; put its `start` onto the ranks' PYTHONPATH")
    lay_out(parser.parse_args(argv).folder, _copy)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
