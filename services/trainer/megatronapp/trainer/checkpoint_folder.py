"""The folder of a run's checkpoints: written whole or not at all, by one writer.

    <folder>/latest_checkpointed_iteration.txt   the newest complete step, replaced atomically
    <folder>/claim.json                          which attempt may write here
    <folder>/iter_0000100/                       one checkpoint in megatron-core's distributed format (checkpoint.py)
    <folder>/iter_0000100/recipe.json            flags, tokenizer and versions of the run (recipe.py)
    <folder>/iter_0000100/tokenizer/             the tokenizer's files, where it has any
    <folder>/iter_0000100/complete.json          the size of each file, written last

A checkpoint is written into a folder of another name and renamed when every rank has written and synced its part.
"""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from megatronapp.core.durable_file import replace_file, sync
from megatronapp.core.errors import DataError, MegatronAppError, NotFoundError, TrainingError
from megatronapp.core.json_file import load_json_file
from megatronapp.core.logging import get_logger
from megatronapp.trainer.recipe import RunRecipe

log = get_logger(__name__)

LATEST = "latest_checkpointed_iteration.txt"
CLAIM = "claim.json"
RECIPE = "recipe.json"
TOKENIZER = "tokenizer"
COMPLETE = "complete.json"
_FOLDER = re.compile(r"^iter_(\d{7,})$")


def find_latest(folder: Path) -> int | None:
    """The step of the newest complete checkpoint; None in a folder without any.

    A torn checkpoint (files missing or cut short) is passed over with a warning. Raises DataError when there are
    checkpoints but none is complete.
    """
    tracker = folder / LATEST
    if not tracker.exists():
        return None
    text = tracker.read_text(errors="replace").strip()
    steps = sorted(_steps_in(folder), reverse=True)
    if text.isdigit():
        steps = [step for step in steps if step <= int(text)]
    else:
        log.warning("checkpoint_tracker_unreadable", file=str(tracker), content=text[:40])
    for step in steps:
        reason = why_torn(folder / folder_name(step))
        if reason is None:
            return step
        log.warning("checkpoint_torn", folder=str(folder / folder_name(step)), reason=reason)
    raise DataError(f"{folder} has no complete checkpoint; give another --load, or an empty folder to start anew")


def folder_name(step: int) -> str:
    return f"iter_{step:07d}"


def _steps_in(folder: Path) -> list[int]:
    names = (_FOLDER.match(path.name) for path in folder.iterdir())
    return [int(name[1]) for name in names if name]


def why_torn(checkpoint: Path) -> str | None:
    """Why this checkpoint can't be used, or None."""
    try:
        sizes = load_json_file(checkpoint / COMPLETE)["files"].items()
    except (MegatronAppError, LookupError, TypeError, AttributeError):
        return f"{COMPLETE} is missing or unreadable"
    try:
        for name, size in sizes:
            file = checkpoint / name
            if not file.exists():
                return f"{name} is missing"
            if file.stat().st_size != size:
                return f"{name} has {file.stat().st_size} bytes instead of {size}"
    except (OSError, ValueError) as error:  # a name that no file can have
        return f"{COMPLETE} names a file that can't be read: {error}"
    return None


def find_complete(folder: Path) -> Path:
    """The checkpoint that `folder` is, or else the newest complete one in it. Raises NotFoundError and DataError."""
    if not folder.is_dir():
        raise NotFoundError(f"{folder}: there is no such folder")
    if _FOLDER.match(folder.name) and not (folder / LATEST).exists():
        if (reason := why_torn(folder)) is not None:
            raise DataError(f"{folder} is no complete checkpoint: {reason}")
        return folder
    step = find_latest(folder)
    if step is None:
        raise NotFoundError(f"{folder} holds no checkpoint of the trainer")
    return folder / folder_name(step)


def read_recipe(checkpoint: Path) -> RunRecipe:
    """Raises DataError where it is missing or can't be read."""
    file = checkpoint / RECIPE
    try:
        return RunRecipe.from_json(file.read_text())
    except FileNotFoundError as error:
        raise DataError(f"{checkpoint} has no {RECIPE}: it was not written by this version of the trainer") from error
    except (DataError, UnicodeDecodeError) as error:
        raise DataError(f"{file}: {error}") from error


# ---- writing


@dataclass(frozen=True)
class Claim:
    """The right to write: held by the newest attempt of the run that started last."""

    folder: Path
    run: str
    attempt: int

    def take(self) -> None:
        """Raises TrainingError when a newer attempt of the same run holds the folder. Call on one rank."""
        self.folder.mkdir(parents=True, exist_ok=True)
        holder = self._holder()
        if holder is not None and holder["run"] == self.run and holder["attempt"] > self.attempt:
            raise TrainingError(self._refusal(holder))
        replace_file(self.folder / CLAIM, json.dumps({"run": self.run, "attempt": self.attempt}).encode())

    def check(self) -> None:
        """Raises TrainingError when somebody else has claimed the folder since."""
        holder = self._holder()
        if holder != {"run": self.run, "attempt": self.attempt}:
            raise TrainingError(self._refusal(holder))

    def _holder(self) -> dict[str, Any] | None:
        path = self.folder / CLAIM
        if not path.exists():
            return None
        try:
            holder = load_json_file(path)
            return {"run": str(holder["run"]), "attempt": int(holder["attempt"])}
        except (DataError, LookupError, TypeError, ValueError, ArithmeticError) as error:
            raise DataError(f"{path} is unreadable; remove it if no run writes there") from error

    def _refusal(self, holder: dict[str, Any] | None) -> str:
        now = f"attempt {holder['attempt']} of run {holder['run']}" if holder else "nobody"
        return (
            f"attempt {self.attempt} of run {self.run} must not write checkpoints to {self.folder}: {now} holds it "
            "now; this process is stale and ends"
        )


def prepare(claim: Claim, partial: Path) -> None:
    """An empty `partial`. Call on one rank. Raises TrainingError."""
    claim.check()
    shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir(parents=True)


def publish(
    claim: Claim, partial: Path, final: Path, *, step: int, recipe: RunRecipe, tokenizer_files: Mapping[str, bytes]
) -> None:
    """What the ranks wrote to `partial` becomes the newest checkpoint. Call on one rank. Raises TrainingError."""
    replace_file(partial / RECIPE, recipe.to_json().encode())
    for name, content in tokenizer_files.items():
        (partial / TOKENIZER).mkdir(exist_ok=True)
        replace_file(partial / TOKENIZER / name, content)
    files = {str(p.relative_to(partial)): p.stat().st_size for p in sorted(partial.rglob("*")) if p.is_file()}
    complete = {"step": step, "attempt": claim.attempt, "files": files}
    replace_file(partial / COMPLETE, json.dumps(complete, indent=1).encode())
    claim.check()
    shutil.rmtree(final, ignore_errors=True)
    partial.rename(final)
    sync(claim.folder)
    replace_file(claim.folder / LATEST, str(step).encode())


def prune(claim: Claim, *, step: int, keep: int) -> None:
    """Remove all but the newest `keep` complete checkpoints up to that of `step`. Torn ones older than these go too;
    later ones, which an earlier run left, stay. Call on one rank. What can't be removed is logged."""
    kept = 0
    for each in sorted(_steps_in(claim.folder), reverse=True):
        checkpoint = claim.folder / folder_name(each)
        if each > step:
            continue
        if kept < keep:
            kept += why_torn(checkpoint) is None
            continue
        # Under another name first: what is half removed must not look like a checkpoint.
        going = checkpoint.with_name(f".{checkpoint.name}.removed")
        try:
            shutil.rmtree(going, ignore_errors=True)
            checkpoint.rename(going)
            shutil.rmtree(going)
        except OSError as error:
            log.warning("checkpoint_not_removed", folder=str(checkpoint), reason=error.strerror)
