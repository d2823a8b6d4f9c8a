"""megatron-core, imported without what its timers could write to and never do here.

`megatron.core.timers` imports TensorBoard and wandb where they are installed, and with them protobuf, which a rank has
no use for. megatron-core does without either. This module is imported before the first part of megatron-core; after it
both can be imported as ever, as --tensorboard-dir and scripts of a user's own do.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager

LEFT_OUT = ("torch.utils.tensorboard", "wandb")


@contextmanager
def without(*modules: str) -> Iterator[None]:
    """Inside, importing these raises ImportError, as if they were not installed; one imported before stays."""
    absent = [name for name in modules if name not in sys.modules]
    sys.modules.update(dict.fromkeys(absent))  # type: ignore[arg-type]  # None: importlib's word for "not there"
    try:
        yield
    finally:
        for name in absent:
            sys.modules.pop(name, None)


with without(*LEFT_OUT):
    import megatron.core.timers  # noqa: F401
