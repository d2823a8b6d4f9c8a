"""Where the command line keeps and finds files."""

from __future__ import annotations

from pathlib import Path

import platformdirs

from megatronapp.core.errors import NotFoundError


def data_folder() -> Path:
    """The user's data folder for traces, checkpoints and tokens."""
    return platformdirs.user_data_path("megatronapp", appauthor=False)


def demo_folder() -> Path:
    """The demo's own, so that it meets no other run."""
    return data_folder() / "demo"


def examples_folder() -> Path:
    """The examples: in an installed package beside this file, in a checkout at its root."""
    here = Path(__file__).resolve()
    for folder in (here.parent / "examples", here.parents[4] / "examples"):
        if folder.is_dir():
            return folder
    raise NotFoundError("the examples are not installed with this package; use a checkout of the repository")
