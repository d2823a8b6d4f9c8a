"""`token`: how to sign in to the page of this machine's platform."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import httpx
import typer

from megatronapp.cli import local
from megatronapp.cli.folders import data_folder, demo_folder
from megatronapp.cli.kept_token import OPERATOR, read_kept
from megatronapp.core.errors import NotFoundError, UnavailableError

ANSWER_SECONDS = 5.0


def token(
    folder: Annotated[
        Path | None, typer.Option(help="the platform's folder; default: that of `up`, else the demo's")
    ] = None,
) -> None:
    """Print the token that signs in to the page and, while the platform runs, a link that signs in once."""
    chosen = folder or _folder_in_use()
    found = _read(chosen)
    if found is None:
        raise NotFoundError(f"there is no token in {chosen}: `megatronapp up` creates one")
    print(found, flush=True)
    running = local.find(chosen)
    if running is not None and running.page:
        print(f"page  {running.page}?token={_new_link(running.page, found)}", file=sys.stderr)


def _folder_in_use() -> Path:
    """Where a platform runs; else where one has run."""
    folders = (data_folder(), demo_folder())
    running = (folder for folder in folders if local.find(folder))
    known = (folder for folder in folders if _read(folder))
    return next(running, None) or next(known, None) or folders[0]


def _read(folder: Path) -> str | None:
    try:
        kept = read_kept(folder, OPERATOR)
    except OSError as error:
        raise UnavailableError(f"{folder / OPERATOR} can't be read: {error.strerror}") from error
    return kept.get_secret_value() if kept else None


def _new_link(page: str, operator_token: str) -> str:
    """A one-time token of the gateway's. Raises UnavailableError."""
    headers = {"Authorization": f"Bearer {operator_token}"}
    try:
        answer = httpx.post(f"{page}api/v1/session/link", headers=headers, timeout=ANSWER_SECONDS)
        answer.raise_for_status()
        return str(answer.json()["token"])
    except (httpx.HTTPError, ValueError, KeyError) as error:
        raise UnavailableError(f"the platform at {page} gave no link: {error}") from error
