"""Warnings of the libraries that training stands on: their own affairs, of which a user can do nothing.

PYTHONWARNINGS, or python -W, says otherwise: with either set nothing is filtered here (PYTHONWARNINGS=default shows
all). It holds for the ranks, too, as they inherit it.
"""

from __future__ import annotations

import sys
import warnings

LIBRARIES = ("apex", "megatron", "nvidia", "nvtx", "pynvml", "tensorboard", "torch", "transformer_engine", "triton")
CATEGORIES = (UserWarning, FutureWarning, DeprecationWarning)


def silence() -> None:
    """Filter them; call it before the first of the libraries is imported."""
    if sys.warnoptions:
        return
    for category in CATEGORIES:
        warnings.filterwarnings("ignore", category=category, module=rf"({'|'.join(LIBRARIES)})(\.|$)")
