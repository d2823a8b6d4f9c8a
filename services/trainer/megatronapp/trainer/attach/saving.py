"""Functions that save a checkpoint, in whose calls the run is in that phase."""

from __future__ import annotations

import functools
from contextlib import nullcontext
from types import ModuleType
from typing import Any

from megatronapp.trainer.attach.attachment import Attachment, bind


def saves(attachment: Attachment, module: ModuleType, *, name: str) -> None:
    """Of a module, the function of this name."""
    stock = getattr(module, name)

    @functools.wraps(stock)
    def save(*args: Any, **kwargs: Any) -> Any:
        from megatronapp.core.trace.values import Phase

        session = attachment.session
        with nullcontext() if session is None else session.phase(Phase.CHECKPOINT):
            return stock(*args, **kwargs)

    bind(stock, save)
