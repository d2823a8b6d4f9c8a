"""A process that is attached: everything that it may import is waited for."""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import partial
from types import ModuleType
from typing import TYPE_CHECKING

from megatronapp.core.logging import be_a_guest
from megatronapp.trainer.attach import megatron_core, megatron_lm, torch_loop
from megatronapp.trainer.attach.attachment import Attachment

if TYPE_CHECKING:
    import argparse

PATCHES: dict[str, Callable[[Attachment, ModuleType], None]] = {
    **torch_loop.PATCHES,
    **megatron_core.PATCHES,
    **megatron_lm.PATCHES,
}

_of_process: list[Attachment] = []
"""None or one: what is patched is the process's."""


def attachment_of_process(flags: str) -> Attachment:
    """The one that is there, as under `megatronapp attach`, else a new one. `flags`: as the environment variable has
    them. Light, as most processes under the command never train."""
    if not _of_process:
        be_a_guest()
        _of_process.append(attachment := Attachment(partial(_read, flags)))
        sys.meta_path.insert(0, attachment.late)
        for name, patch in PATCHES.items():
            attachment.late.when_imported(name, partial(patch, attachment))
    return _of_process[0]


def _read(flags: str) -> argparse.Namespace:
    from megatronapp.trainer.attach.arguments import decode

    return decode(flags)
